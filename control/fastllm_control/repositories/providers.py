"""Providers: SQL only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from fastllm_control.naming import is_named
from fastllm_control.tables.access import Principal
from fastllm_control.tables.configuration import Backend, Provider, ProviderModel


async def find(session: AsyncSession, reference: str, *, lock: bool = False) -> Provider | None:
    """By id or name; `lock` holds the row until the end of the transaction."""
    query = select(Provider).where(is_named(reference, Provider.id, Provider.name))
    return await session.scalar(query.with_for_update() if lock else query)


async def name_taken(session: AsyncSession, name: str) -> bool:
    """Whether a provider of that name exists."""
    return await session.scalar(select(Provider.id).where(Provider.name == name)) is not None


async def page(
    session: AsyncSession,
    limit: int,
    after: UUID | None,
    filters: Mapping[str, str | None],
    *,
    owner: str | None = None,
    name_prefix: str | None = None,
) -> Sequence[Provider]:
    """Up to `limit` providers in the order in which they were made; `filters` by column, `owner` is the id or
    name of a principal."""
    query = select(Provider).order_by(Provider.id).limit(limit)
    if after is not None:
        query = query.where(Provider.id > after)
    for column, value in filters.items():
        if value is not None:
            query = query.where(getattr(Provider, column) == value)
    if owner is not None:
        owning = select(Principal.id).where(is_named(owner, Principal.id, Principal.name))
        query = query.where(Provider.owner_id.in_(owning))
    if name_prefix is not None:
        query = query.where(Provider.name.startswith(name_prefix, autoescape=True))
    return (await session.scalars(query)).all()


async def owner_names(session: AsyncSession, providers: Sequence[Provider]) -> Mapping[UUID, str]:
    """The names of the principals that own any of `providers`."""
    ids = {provider.owner_id for provider in providers if provider.owner_id is not None}
    if not ids:
        return {}
    found = await session.execute(select(Principal.id, Principal.name).where(Principal.id.in_(ids)))
    return {row.id: row.name for row in found}


async def models_served(session: AsyncSession, provider_id: UUID) -> Sequence[str]:
    """The names of the provider models that have a backend there."""
    query = (
        select(ProviderModel.name)
        .join(Backend, Backend.provider_model_id == ProviderModel.id)
        .where(Backend.provider_id == provider_id)
        .group_by(ProviderModel.name)
        .order_by(ProviderModel.name)
    )
    return (await session.scalars(query)).all()


async def upstream_models(session: AsyncSession, provider_id: UUID) -> Mapping[str, str]:
    """Upstream name → provider model, of what is registered there."""
    query = (
        select(Backend.upstream_model, func.min(ProviderModel.name).label("name"))
        .join(ProviderModel, ProviderModel.id == Backend.provider_model_id)
        .where(Backend.provider_id == provider_id)
        .group_by(Backend.upstream_model)
    )
    return {row.upstream_model: row.name for row in await session.execute(query)}
