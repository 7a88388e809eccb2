"""The history of published versions: SQL only."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

KEPT_DAYS = 7

_RECORD = text(
    # Several control planes publish the same version: the first one writes it down. Its audit events are
    # those since the version before it, so that a version that nobody built in a burst loses none of them.
    "INSERT INTO published_snapshots (version, audit_ids, hash)"
    " SELECT :version, coalesce((SELECT array_agg(id ORDER BY id) FROM audit_events"
    " WHERE version <= :version AND version > coalesce("
    "(SELECT max(version) FROM published_snapshots WHERE version < :version), 0)), '{}'), :hash"
    " ON CONFLICT (version) DO NOTHING"
)
_FORGET = text(
    "DELETE FROM published_snapshots WHERE version <> :version AND at < now() - make_interval(days => :days)"
)
_PAGE = text(
    "SELECT s.version, s.at, encode(s.hash, 'hex') AS hash, coalesce((SELECT json_agg(json_build_object("
    "'id', e.id, 'at', e.at, 'actor', e.actor, 'action', e.action, 'target_kind', e.target_kind,"
    " 'target_id', e.target_id, 'target_name', e.target_name) ORDER BY e.id)"
    # Of two control planes one may write a version down after the other has written down a later one, which
    # took its events along: each event is shown with the first version that holds it.
    " FROM audit_events e WHERE e.id = ANY(s.audit_ids) AND e.version > coalesce("
    "(SELECT max(p.version) FROM published_snapshots p WHERE p.version < s.version), 0)), '[]'::json)"
    " AS events"
    " FROM published_snapshots s WHERE CAST(:after AS bigint) IS NULL OR s.version < :after"
    " ORDER BY s.version DESC LIMIT :limit"
)


_KNOWN = text(
    # A version of a burst that nobody built by itself has its audit events all the same.
    "SELECT EXISTS (SELECT 1 FROM published_snapshots WHERE version = :version)"
    " OR EXISTS (SELECT 1 FROM audit_events WHERE version = :version)"
)


class SnapshotEvent(msgspec.Struct, frozen=True):
    """An audit event that is part of a version; `/admin/audit` has it whole."""

    id: int
    at: datetime.datetime
    actor: str
    action: str
    target_kind: str
    target_id: str | None
    target_name: str | None


class SnapshotRow(msgspec.Struct, frozen=True):
    """A version, when it was published, SHA-256 of its content, and what made it."""

    version: int
    at: datetime.datetime
    hash: str
    events: list[SnapshotEvent]


async def record(connection: AsyncConnection, version: int, digest: bytes) -> None:
    """Write down that `version` was published, and forget those that are older than `KEPT_DAYS`."""
    await connection.execute(_RECORD, {"version": version, "hash": digest})
    await connection.execute(_FORGET, {"version": version, "days": KEPT_DAYS})


async def page(session: AsyncSession, limit: int, after: int | None) -> list[SnapshotRow]:
    """Up to `limit` versions, newest first, older than `after`."""
    found: Any = await session.execute(_PAGE, {"limit": limit, "after": after})
    return [msgspec.convert(dict(row), SnapshotRow) for row in found.mappings()]


async def is_known(session: AsyncSession, version: int) -> bool:
    """Whether there was such a version, as far as is remembered."""
    return bool(await session.scalar(_KNOWN, {"version": version}))
