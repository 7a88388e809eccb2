"""SQL of limits and budgets."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import Row, select
from sqlalchemy.ext.asyncio import AsyncSession

from fastllm_control.tables.access import Budget, Limit, Principal


async def limit_of(session: AsyncSession, principal_id: UUID, *, lock: bool = False) -> Limit | None:
    query = select(Limit).where(Limit.principal_id == principal_id)
    return (await session.execute(query.with_for_update() if lock else query)).scalar_one_or_none()


async def budget_of(session: AsyncSession, principal_id: UUID, *, lock: bool = False) -> Budget | None:
    """`lock` for whoever will write it, so that what is being consumed meanwhile is not overwritten."""
    query = select(Budget).where(Budget.principal_id == principal_id)
    return (await session.execute(query.with_for_update() if lock else query)).scalar_one_or_none()


async def limits_page(session: AsyncSession, limit: int, after: UUID | None) -> Sequence[Row[Limit, str]]:
    """Up to `limit` rows of (Limit, principal's name) by principal id."""
    query = (
        select(Limit, Principal.name)
        .join(Principal, Principal.id == Limit.principal_id)
        .order_by(Limit.principal_id)
        .limit(limit)
    )
    if after is not None:
        query = query.where(Limit.principal_id > after)
    return (await session.execute(query)).all()


async def budgets_page(session: AsyncSession, limit: int, after: UUID | None) -> Sequence[Row[Budget, str]]:
    """Up to `limit` rows of (Budget, principal's name) by principal id."""
    query = (
        select(Budget, Principal.name)
        .join(Principal, Principal.id == Budget.principal_id)
        .order_by(Budget.principal_id)
        .limit(limit)
    )
    if after is not None:
        query = query.where(Budget.principal_id > after)
    return (await session.execute(query)).all()
