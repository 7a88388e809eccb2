"""SQL of API keys."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import Row, Select, select
from sqlalchemy.ext.asyncio import AsyncSession

from fastllm_control.tables.access import ApiKey, Principal


async def find(session: AsyncSession, key_id: UUID) -> ApiKey | None:
    """The key, locked against another change of it."""
    return (
        await session.execute(select(ApiKey).where(ApiKey.id == key_id).with_for_update())
    ).scalar_one_or_none()


async def by_digest(session: AsyncSession, digest: bytes) -> ApiKey | None:
    """The key with that digest, locked."""
    query = select(ApiKey).where(ApiKey.digest == digest).with_for_update()
    return (await session.execute(query)).scalar_one_or_none()


async def row(session: AsyncSession, key_id: UUID) -> Row[ApiKey, str] | None:
    """(ApiKey, its principal's name)."""
    return (await session.execute(_with_principal().where(ApiKey.id == key_id))).first()


async def page(
    session: AsyncSession,
    limit: int,
    after: UUID | None,
    *,
    principal_id: UUID | None = None,
    disabled: bool | None = None,
    scope: str | None = None,
    prefix: str | None = None,
) -> Sequence[Row[ApiKey, str]]:
    """Up to `limit` rows of (ApiKey, its principal's name), oldest first."""
    query = _with_principal().order_by(ApiKey.id).limit(limit)
    if after is not None:
        query = query.where(ApiKey.id > after)
    if principal_id is not None:
        query = query.where(ApiKey.principal_id == principal_id)
    if disabled is not None:
        query = query.where(ApiKey.disabled == disabled)
    if scope is not None:
        query = query.where(ApiKey.scope == scope)
    if prefix is not None:
        query = query.where(ApiKey.prefix == prefix)
    return (await session.execute(query)).all()


def _with_principal() -> Select[ApiKey, str]:
    return select(ApiKey, Principal.name).join(Principal, Principal.id == ApiKey.principal_id)
