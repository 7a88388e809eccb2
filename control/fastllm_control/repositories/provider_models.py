"""Provider models and their backends: SQL only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import delete, select, text, union_all, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from fastllm_control.advisory_locks import AdvisoryLock, take
from fastllm_control.naming import is_named
from fastllm_control.tables.configuration import (
    Acceptance,
    Backend,
    DefaultTarget,
    Pool,
    PoolMember,
    Provider,
    ProviderModel,
    RuleTarget,
)


async def find(session: AsyncSession, reference: str, *, lock: bool = False) -> ProviderModel | None:
    """By id or name; `lock` holds the row until the end of the transaction."""
    query = select(ProviderModel).where(is_named(reference, ProviderModel.id, ProviderModel.name))
    return await session.scalar(query.with_for_update() if lock else query)


async def lock_target_names(session: AsyncSession) -> None:
    """Provider models and pools share one name space, which no constraint spans: writers queue here."""
    await take(session, AdvisoryLock.TARGET_NAMES)


async def holder_of_name(session: AsyncSession, name: str) -> str | None:
    """What bears that name already: `provider model` or `pool`."""
    for kind, table in (("provider model", ProviderModel), ("pool", Pool)):
        if await session.scalar(select(table.id).where(table.name == name)) is not None:
            return kind
    return None


async def page(
    session: AsyncSession,
    limit: int,
    after: UUID | None,
    provider: str | None,
    name_prefix: str | None = None,
) -> Sequence[ProviderModel]:
    """Up to `limit` models in the order in which they were made; `provider` (id or name) serves them."""
    query = select(ProviderModel).order_by(ProviderModel.id).limit(limit)
    if after is not None:
        query = query.where(ProviderModel.id > after)
    if name_prefix is not None:
        query = query.where(ProviderModel.name.startswith(name_prefix, autoescape=True))
    if provider is not None:
        served = (
            select(Backend.provider_model_id)
            .join(Provider, Provider.id == Backend.provider_id)
            .where(is_named(provider, Provider.id, Provider.name))
        )
        query = query.where(ProviderModel.id.in_(served))
    return (await session.scalars(query)).all()


async def backends_of(
    session: AsyncSession, model_ids: Sequence[UUID]
) -> Mapping[UUID, Sequence[tuple[Backend, str]]]:
    """Per model its backends, oldest first, each with its provider's name."""
    query = (
        select(Backend, Provider.name)
        .join(Provider, Provider.id == Backend.provider_id)
        .where(Backend.provider_model_id.in_(model_ids))
        .order_by(Backend.created_at, Backend.id)
    )
    found: defaultdict[UUID, list[tuple[Backend, str]]] = defaultdict(list)
    for backend, provider in await session.execute(query):
        found[backend.provider_model_id].append((backend, provider))
    return found


async def backend_page(
    session: AsyncSession, limit: int, after: UUID | None, model_id: UUID
) -> Sequence[tuple[Backend, str]]:
    """Up to `limit` of a model's backends, oldest first, each with its provider's name."""
    query = (
        select(Backend, Provider.name)
        .join(Provider, Provider.id == Backend.provider_id)
        .where(Backend.provider_model_id == model_id)
        .order_by(Backend.id)
        .limit(limit)
    )
    if after is not None:
        query = query.where(Backend.id > after)
    return [(backend, provider) for backend, provider in await session.execute(query)]


async def backend(
    session: AsyncSession, backend_id: UUID, *, lock: bool = False
) -> tuple[Backend, Provider, ProviderModel] | None:
    """A backend with what it joins."""
    query = (
        select(Backend, Provider, ProviderModel)
        .join(Provider, Provider.id == Backend.provider_id)
        .join(ProviderModel, ProviderModel.id == Backend.provider_model_id)
        .where(Backend.id == backend_id)
    )
    found = await session.execute(query.with_for_update(of=Backend) if lock else query)
    return found.one_or_none()


async def is_served(session: AsyncSession, model_id: UUID, provider_id: UUID, upstream_model: str) -> bool:
    """Whether there is such a backend already."""
    query = select(Backend.id).where(
        Backend.provider_model_id == model_id,
        Backend.provider_id == provider_id,
        Backend.upstream_model == upstream_model,
    )
    return await session.scalar(query) is not None


async def move_targets(session: AsyncSession, before: str, after: str) -> None:
    """Targets, pool members and acceptances are bound by name: they follow a model that is renamed."""
    await move_named_targets(session, before, after)
    await _rename(session, PoolMember.provider_model, PoolMember.pool_id, before, after)
    moved = select(
        Acceptance.principal_id, text(":after").bindparams(after=after), Acceptance.accepted_by
    ).where(Acceptance.provider_model == before)
    columns = ["principal_id", "provider_model", "accepted_by"]
    await session.execute(insert(Acceptance).from_select(columns, moved).on_conflict_do_nothing())


async def move_named_targets(session: AsyncSession, before: str, after: str) -> None:
    """Targets of frontend models and rules follow what is renamed."""
    await _rename(session, DefaultTarget.target, DefaultTarget.frontend_model_id, before, after)
    await _rename(session, RuleTarget.target, RuleTarget.rule_id, before, after)


async def _rename(
    session: AsyncSession,
    column: InstrumentedAttribute[str] | InstrumentedAttribute[str | None],
    owner: InstrumentedAttribute[UUID],
    before: str,
    after: str,
) -> None:
    """In a list that held both names, what bore the new one led nowhere: it gives way, since no list names
    one thing twice."""
    table: Any = column.class_
    both = select(owner).where(column == before)
    unsynchronised = {"synchronize_session": False}
    await session.execute(
        delete(table).where(column == after, owner.in_(both)), execution_options=unsynchronised
    )
    await session.execute(
        update(table).where(column == before).values({column: after}), execution_options=unsynchronised
    )


async def accept(session: AsyncSession, principal_id: UUID, model: str, by: str) -> None:
    """From now on hosts of that principal serve the model without being asked."""
    row = {"principal_id": principal_id, "provider_model": model, "accepted_by": by}
    await session.execute(insert(Acceptance).values(row).on_conflict_do_nothing())


async def resolved(session: AsyncSession, names: Sequence[str]) -> frozenset[str]:
    """Those of `names` that a provider model or a pool bears."""
    models = select(ProviderModel.name).where(ProviderModel.name.in_(names))
    pools = select(Pool.name).where(Pool.name.in_(names))
    return frozenset(await session.scalars(union_all(models, pools)))


async def existing(session: AsyncSession, names: Sequence[str]) -> frozenset[str]:
    """Those of `names` that a provider model bears."""
    return frozenset(await session.scalars(select(ProviderModel.name).where(ProviderModel.name.in_(names))))
