"""Usage on its way in: SQL of the one transaction that stores a batch."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

_TYPES = {
    "id": "uuid",
    "at": "double precision",
    "replica": "text",
    "request_id": "text",
    "sequence": "bigint",
    "endpoint": "text",
    "status": "smallint",
    "refusal": "text",
    "principal_id": "uuid",
    "principal": "text",
    "key_id": "uuid",
    "key_prefix": "text",
    "model": "text",
    "provider_model": "text",
    "provider_id": "uuid",
    "provider": "text",
    "backend_id": "uuid",
    "rule": "integer",
    "tag": "text",
    "prompt_tokens": "bigint",
    "completion_tokens": "bigint",
    "cached_tokens": "bigint",
    "reasoning_tokens": "bigint",
    "usage_reported": "boolean",
    "cost_micros": "bigint",
    "cost_source": "text",
    "stream": "boolean",
    "attempts": "integer",
    "ttft_ms": "double precision",
    "duration_ms": "double precision",
}
_NAMES = ", ".join(_TYPES)
_SELECTED = ", ".join(f"to_timestamp({name})" if name == "at" else name for name in _TYPES)
_ARRAYS = ", ".join(f"CAST(:{name} AS {kind}[])" for name, kind in _TYPES.items())

_INSERT = text(
    # Arrays keep the driver's work to one statement with thirty parameters. The rows come in the order of
    # the arrays: that is what makes every transaction take the ids' locks in the same order.
    f"WITH fresh AS (INSERT INTO usage_events ({_NAMES})"  # noqa: S608 (names from the table above)
    f" SELECT {_SELECTED} FROM unnest({_ARRAYS}) AS batch ({_NAMES})"
    " ON CONFLICT (id) DO NOTHING RETURNING replica, key_id, at, sequence)"
    " SELECT replica, key_id, count(*) AS events, max(sequence) AS highest_sequence,"
    " date_trunc('minute', least(max(at), now())) AS last_minute FROM fresh GROUP BY replica, key_id"
)

_KEYS_DUE = text(
    "SELECT k.id, used.last_minute FROM api_keys k"
    " JOIN unnest(CAST(:ids AS uuid[]), CAST(:minutes AS timestamptz[])) AS used (id, last_minute)"
    " ON used.id = k.id WHERE k.last_used_at IS NULL OR k.last_used_at < used.last_minute"
    " ORDER BY k.id FOR NO KEY UPDATE OF k"
)
_TOUCH_KEYS = text(
    "UPDATE api_keys k SET last_used_at = used.last_minute"
    " FROM unnest(CAST(:ids AS uuid[]), CAST(:minutes AS timestamptz[])) AS used (id, last_minute)"
    " WHERE used.id = k.id"
)
_COUNT_STORED = text(
    "INSERT INTO replicas (replica, seen_at, events_stored, highest_sequence)"
    " SELECT replica, clock_timestamp(), events, highest FROM"
    " unnest(CAST(:replicas AS text[]), CAST(:events AS bigint[]), CAST(:highest AS bigint[]))"
    " AS batch (replica, events, highest)"
    " ON CONFLICT (replica) DO UPDATE SET seen_at = excluded.seen_at,"
    " events_stored = replicas.events_stored + excluded.events_stored,"
    " highest_sequence = greatest(replicas.highest_sequence, excluded.highest_sequence)"
)


class Fresh(msgspec.Struct, frozen=True):
    """The events of one replica and key that were new. `last_minute` is never in the future."""

    replica: str
    key_id: UUID | None
    events: int
    highest_sequence: int
    last_minute: datetime.datetime


async def insert_new(session: AsyncSession, columns: Mapping[str, Sequence[Any]]) -> list[Fresh]:
    """Insert the rows whose ids are not there yet; `columns` are sorted by id, each id once."""
    found = await session.execute(_INSERT, {name: columns[name] for name in _TYPES})
    return [Fresh(*row) for row in found]


async def touch_keys(session: AsyncSession, fresh: Sequence[Fresh]) -> None:
    """Move `last_used_at` of the keys forward, to the minute: a busy key is written once a minute."""
    latest: dict[UUID, datetime.datetime] = {}
    for group in fresh:
        if group.key_id is not None:
            latest[group.key_id] = max(group.last_minute, latest.get(group.key_id, group.last_minute))
    if not latest:
        return
    due = (await session.execute(_KEYS_DUE, {"ids": list(latest), "minutes": list(latest.values())})).all()
    if due:
        await session.execute(
            _TOUCH_KEYS, {"ids": [row.id for row in due], "minutes": [row.last_minute for row in due]}
        )


async def count_stored(session: AsyncSession, fresh: Sequence[Fresh]) -> None:
    """Count the new events for the replicas that made them, so that a gap shows."""
    totals: dict[str, tuple[int, int]] = {}
    for group in fresh:
        events, highest = totals.get(group.replica, (0, 0))
        totals[group.replica] = (events + group.events, max(highest, group.highest_sequence))
    names = sorted(totals)
    if names:
        counts = [totals[name][0] for name in names]
        highest_numbers = [totals[name][1] for name in names]
        await session.execute(
            _COUNT_STORED, {"replicas": names, "events": counts, "highest": highest_numbers}
        )
