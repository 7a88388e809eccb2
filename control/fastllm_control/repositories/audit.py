"""SQL of the audit log."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

import msgspec
from sqlalchemy import or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from fastllm_control.tables.audit import AuditEvent


class AuditFilter(msgspec.Struct, frozen=True):
    """`None` is no filter. `target` is an id or a name; `since` is inclusive, `until` exclusive."""

    actor: str | None = None
    action: str | None = None
    target_kind: str | None = None
    target: str | None = None
    request_id: str | None = None
    since: datetime.datetime | None = None
    until: datetime.datetime | None = None


async def page(
    session: AsyncSession, limit: int, after: int | None, wanted: AuditFilter
) -> Sequence[AuditEvent]:
    """Up to `limit` events, newest first."""
    query = select(AuditEvent).order_by(AuditEvent.id.desc()).limit(limit)
    if after is not None:
        query = query.where(AuditEvent.id < after)
    for column in (AuditEvent.actor, AuditEvent.action, AuditEvent.target_kind, AuditEvent.request_id):
        value = getattr(wanted, column.key)
        if value is not None:
            query = query.where(column == value)
    if wanted.target is not None:
        query = query.where(
            or_(AuditEvent.target_id == wanted.target, AuditEvent.target_name == wanted.target)
        )
    if wanted.since is not None:
        query = query.where(AuditEvent.at >= wanted.since)
    if wanted.until is not None:
        query = query.where(AuditEvent.at < wanted.until)
    return (await session.execute(query)).scalars().all()


async def between(
    session: AsyncSession, limit: int, after: int | None, versions: tuple[int, int]
) -> Sequence[AuditEvent]:
    """Up to `limit` events that lead from the first of two versions to the second, in the order in which they
    happened."""
    earlier, later = versions
    query = (
        select(AuditEvent)
        .where(AuditEvent.version > earlier, AuditEvent.version <= later)
        .order_by(AuditEvent.id)
        .limit(limit)
    )
    if after is not None:
        query = query.where(AuditEvent.id > after)
    return (await session.scalars(query)).all()
