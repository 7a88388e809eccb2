"""SQL of login sessions."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import Row, delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from fastllm_control.naming import is_named
from fastllm_control.tables.access import Principal, Session


async def page(
    session: AsyncSession,
    limit: int,
    after: UUID | None,
    now: datetime.datetime,
    principal: str | None = None,
) -> Sequence[Row[Session, str]]:
    """Up to `limit` rows of (Session, its principal's name) that are valid, oldest first; `principal` is an
    id or a name."""
    query = (
        select(Session, Principal.name)
        .join(Principal, Principal.id == Session.principal_id)
        .where(Session.expires_at > now)
        .order_by(Session.id)
        .limit(limit)
    )
    if after is not None:
        query = query.where(Session.id > after)
    if principal is not None:
        query = query.where(is_named(principal, Principal.id, Principal.name))
    return (await session.execute(query)).all()


async def revoke(session: AsyncSession, session_id: UUID) -> UUID | None:
    """Returns whose it was."""
    query = delete(Session).where(Session.id == session_id).returning(Session.principal_id)
    return (await session.execute(query)).scalar_one_or_none()


async def revoke_by_digest(session: AsyncSession, digest: bytes) -> Row[UUID, UUID] | None:
    """Returns (id, principal_id) of what was revoked."""
    query = delete(Session).where(Session.digest == digest).returning(Session.id, Session.principal_id)
    return (await session.execute(query)).first()


async def revoke_all(session: AsyncSession, principal_id: UUID, but: UUID | None = None) -> None:
    """Every session of a principal, except one."""
    query = delete(Session).where(Session.principal_id == principal_id)
    await session.execute(query if but is None else query.where(Session.id != but))


async def forget_expired(session: AsyncSession, now: datetime.datetime) -> None:
    await session.execute(delete(Session).where(Session.expires_at <= now))
