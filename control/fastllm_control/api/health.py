"""`/admin/health`: how the control plane itself is doing."""

from __future__ import annotations

from typing import Literal

import msgspec

from fastllm_control.fleet import UsageGap
from fastllm_control.operations import Call, Operation
from fastllm_control.services import fleet
from fastllm_control.snapshot import Dropped


class Health(msgspec.Struct, frozen=True):
    """`last_error` is of the newest snapshot build, if it failed; `dropped` names what it had to leave out.

    `leader` is the control plane that runs the jobs that must run once; `null` while there are none.
    """

    snapshot_version: int | None
    snapshot_rebuild_failures: int
    last_error: str | None
    dropped: tuple[Dropped, ...]
    leader: str | None
    database: Literal["ok"]
    usage_gaps: tuple[UsageGap, ...]


async def show(call: Call) -> Health:
    publisher = call.services.publisher
    async with call.services.database.read() as session:
        gaps = await fleet.usage_gaps(session)
    current = publisher.current
    return Health(
        snapshot_version=None if current is None else current.version,
        snapshot_rebuild_failures=publisher.failures,
        last_error=publisher.last_error,
        dropped=() if current is None else tuple(current.dropped),
        leader=None,
        database="ok",
        usage_gaps=gaps,
    )


ROUTES = (
    Operation(
        method="GET",
        path="/admin/health",
        requires="config:read",
        summary="Health of the control plane: snapshot, database, usage that is unaccounted for",
        handler=show,
        result=Health,
    ),
)
