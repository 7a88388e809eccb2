"""Pools and their members: SQL only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from uuid import UUID

from sqlalchemy import delete, or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from fastllm_control.naming import id_of, is_named
from fastllm_control.tables.configuration import Backend, Pool, PoolMember, Provider, ProviderModel


async def find(session: AsyncSession, reference: str, *, lock: bool = False) -> Pool | None:
    """By id or name; `lock` holds the row until the end of the transaction."""
    query = select(Pool).where(is_named(reference, Pool.id, Pool.name))
    return await session.scalar(query.with_for_update() if lock else query)


async def page(session: AsyncSession, limit: int, after: UUID | None, member: str | None) -> Sequence[Pool]:
    """Up to `limit` pools in the order in which they were made; `member` is a provider model (its name or id)
    or a backend (its id) that is in them."""
    query = select(Pool).order_by(Pool.id).limit(limit)
    if after is not None:
        query = query.where(Pool.id > after)
    if member is not None:
        identity = id_of(member)
        called = select(ProviderModel.name).where(ProviderModel.id == identity)
        named = (
            PoolMember.provider_model == member
            if identity is None
            else or_(PoolMember.backend_id == identity, PoolMember.provider_model.in_(called))
        )
        query = query.where(Pool.id.in_(select(PoolMember.pool_id).where(named)))
    return (await session.scalars(query)).all()


async def members_of(session: AsyncSession, pool_ids: Sequence[UUID]) -> Mapping[UUID, Sequence[PoolMember]]:
    """Per pool its members, in their order."""
    query = (
        select(PoolMember)
        .where(PoolMember.pool_id.in_(pool_ids))
        .order_by(PoolMember.pool_id, PoolMember.position)
        # What was replaced by statement in this session is read anew.
        .execution_options(populate_existing=True)
    )
    found: defaultdict[UUID, list[PoolMember]] = defaultdict(list)
    for row in await session.scalars(query):
        found[row.pool_id].append(row)
    return found


async def replace_members(
    session: AsyncSession, pool_id: UUID, members: Sequence[tuple[str | None, UUID | None, int]]
) -> None:
    """Put `members` (a provider model's name or a backend's id, and a weight) in the place of all members."""
    await session.execute(
        delete(PoolMember).where(PoolMember.pool_id == pool_id).execution_options(synchronize_session=False)
    )
    rows = [
        {"pool_id": pool_id, "position": at, "provider_model": model, "backend_id": backend, "weight": weight}
        for at, (model, backend, weight) in enumerate(members)
    ]
    if rows:
        await session.execute(insert(PoolMember), rows)


async def hold_backends(session: AsyncSession, backend_ids: Sequence[UUID]) -> frozenset[UUID]:
    """Those of the backends that exist; none of them goes before the transaction ends."""
    query = select(Backend.id).where(Backend.id.in_(backend_ids)).order_by(Backend.id)
    return frozenset(await session.scalars(query.with_for_update(read=True, key_share=True)))


async def backends(
    session: AsyncSession, backend_ids: Sequence[UUID]
) -> Mapping[UUID, tuple[Backend, str, str]]:
    """Those backends that there are, each with the names of its provider and its provider model."""
    query = (
        select(Backend, Provider.name, ProviderModel.name)
        .join(Provider, Provider.id == Backend.provider_id)
        .join(ProviderModel, ProviderModel.id == Backend.provider_model_id)
        .where(Backend.id.in_(backend_ids))
    )
    found = await session.execute(query)
    return {backend.id: (backend, provider, model) for backend, provider, model in found}
