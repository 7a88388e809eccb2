"""`/admin/audit`: who changed what, newest first."""

from __future__ import annotations

import datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec

from fastllm_control.operations import Call, Operation
from fastllm_control.paging import Page, PageQuery, page_of
from fastllm_control.repositories import audit as repository
from fastllm_control.tables.audit import AuditEvent

Text = Annotated[str, msgspec.Meta(max_length=210)]
Moment = Annotated[datetime.datetime, msgspec.Meta(tz=True)]


class AuditQuery(PageQuery, frozen=True, forbid_unknown_fields=True):
    """`target` is an id or a name; `since` is inclusive, `until` exclusive."""

    actor: Text | None = None
    action: Text | None = None
    target_kind: Text | None = None
    target: Text | None = None
    request_id: Text | None = None
    since: Moment | None = None
    until: Moment | None = None


class AuditRow(msgspec.Struct, frozen=True):
    """`changes` is `{field: {"before", "after"}}`; `version` the snapshot that the change made, if any."""

    id: int
    at: datetime.datetime
    actor: str
    actor_id: UUID | None
    via: str
    action: str
    target_kind: str
    target_id: str | None
    target_name: str | None
    changes: dict[str, Any]
    version: int | None
    request_id: str
    address: str


async def index(call: Call) -> Page[AuditRow]:
    query: AuditQuery = call.query
    wanted = repository.AuditFilter(
        actor=query.actor,
        action=query.action,
        target_kind=query.target_kind,
        target=query.target,
        request_id=query.request_id,
        since=query.since,
        until=query.until,
    )
    async with call.services.database.read() as session:
        found = await repository.page(session, query.limit + 1, query.after_number(), wanted)
    return page_of([audit_row(row) for row in found], query.limit, lambda row: row.id)


def audit_row(row: AuditEvent) -> AuditRow:
    """An event as it is shown."""
    return AuditRow(**{name: getattr(row, name) for name in AuditRow.__struct_fields__})


ROUTES = (
    Operation(
        method="GET",
        path="/admin/audit",
        requires="config:read",
        summary="List audit events, newest first",
        handler=index,
        query=AuditQuery,
        result=Page[AuditRow],
    ),
)
