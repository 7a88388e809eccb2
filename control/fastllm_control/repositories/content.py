"""Reading all content for a snapshot. The session must be one repeatable-read view (`Database.read`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, Double, Executable, Select, Text, cast, extract, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from fastllm_control.snapshot_rows import (
    BackendRow,
    FrontendModelRow,
    ModelRow,
    PoolMemberRow,
    PoolRow,
    PrincipalRow,
    ProviderRow,
    Rows,
    RuleRow,
    TargetRow,
)
from fastllm_control.tables.access import (
    ApiKey,
    Budget,
    Limit,
    Principal,
    PrincipalRole,
    Role,
    RolePermission,
)
from fastllm_control.tables.audit import Config, SettingRow
from fastllm_control.tables.configuration import (
    Backend,
    DefaultTarget,
    FrontendModel,
    Pool,
    PoolMember,
    Provider,
    ProviderModel,
    RoutingRule,
    RuleTarget,
)
from fastllm_shared.snapshot import BudgetEntry, KeyEntry, LimitsEntry

FALLBACK_SETTING = "fallback_model"
R = TypeVar("R", bound=msgspec.Struct)


async def version(session: AsyncSession) -> tuple[int, str]:
    """The newest version, and the history that it belongs to."""
    row = (await session.execute(select(Config.version, Config.history))).one()
    return row.version, row.history


async def read(session: AsyncSession) -> Rows:
    """Everything, at the version of this very view."""
    return msgspec.structs.replace(
        await read_routes(session),
        keys=await _keys(session),
        principals=await _principals(session),
        roles=await _roles(session),
        resources=await _resources(session),
    )


async def read_routes(session: AsyncSession) -> Rows:
    """What requests are routed to and by: everything but who may call."""
    number, history = await version(session)
    return Rows(
        version=number,
        history=history,
        providers=await _structs(session, Provider, ProviderRow, Provider.created_at, Provider.id),
        models=await _structs(session, ProviderModel, ModelRow, ProviderModel.name),
        backends=await _structs(session, Backend, BackendRow, Backend.created_at, Backend.id),
        pools=await _structs(session, Pool, PoolRow, Pool.name),
        pool_members=await _structs(
            session, PoolMember, PoolMemberRow, PoolMember.pool_id, PoolMember.position
        ),
        frontend_models=await _frontend_models(session),
        rules=await _structs(session, RoutingRule, RuleRow, RoutingRule.position),
        rule_targets=await _targets(session, RuleTarget, RuleTarget.rule_id),
        default_targets=await _targets(session, DefaultTarget, DefaultTarget.frontend_model_id),
        fallback_model=await fallback(session),
    )


async def _structs(session: AsyncSession, table: Any, kind: type[R], *order: Any) -> Sequence[R]:
    """The rows of `table` as `kind`, whose fields are named like the columns."""
    columns = [getattr(table, field.name) for field in msgspec.structs.fields(kind)]
    return await _read(session, select(*columns).order_by(*order), kind)


async def _read(session: AsyncSession, query: Executable, kind: type[R]) -> Sequence[R]:
    """The query's rows as `kind`, whose fields stand in the order of the columns."""
    return [kind(*row) for row in await session.execute(query)]


async def _targets(session: AsyncSession, table: Any, owner: Any) -> Sequence[TargetRow]:
    query = select(owner, table.target, table.weight).order_by(owner, table.position)
    return await _read(session, query, TargetRow)


async def _keys(session: AsyncSession) -> Sequence[KeyEntry]:
    # An expired key is left out: expiry never moves, so it cannot come back without a new version.
    query = select(
        ApiKey.digest,
        cast(ApiKey.id, Text),
        cast(ApiKey.principal_id, Text),
        ApiKey.prefix,
        ApiKey.scope,
        _unix(ApiKey.expires_at),
    ).where(~ApiKey.disabled, or_(ApiKey.expires_at.is_(None), ApiKey.expires_at > func.now()))
    return await _read(session, query.order_by(ApiKey.id), KeyEntry)


async def _principals(session: AsyncSession) -> Sequence[PrincipalRow]:
    limits = {limit.principal_id: limit for limit in await session.scalars(select(Limit))}
    budgets = {budget.principal_id: budget for budget in await session.scalars(select(Budget))}
    query = select(Principal.id, Principal.name, Principal.kind).order_by(Principal.name)
    # `kind`, like all closed lists here, is kept closed by a constraint.
    found: Any = await session.execute(query)
    return [
        PrincipalRow(row.id, row.name, row.kind, _limits(limits.get(row.id)), _budget(budgets.get(row.id)))
        for row in found
    ]


def _limits(row: Limit | None) -> LimitsEntry | None:
    if row is None:
        return None
    return LimitsEntry(row.requests_per_min, row.tokens_per_min, row.max_concurrent)


def _budget(row: Budget | None) -> BudgetEntry | None:
    if row is None:
        return None
    caps = {"tokens_total": row.tokens_total, "cost_total_micros": row.cost_total_micros}
    return msgspec.convert({**caps, "window": row.window, "timezone": row.timezone}, BudgetEntry)


async def _roles(session: AsyncSession) -> Mapping[UUID, Sequence[str]]:
    query = select(PrincipalRole.principal_id, Role.name).join(Role, Role.id == PrincipalRole.role_id)
    return await _by_principal(session, query.order_by(Role.name))


async def _resources(session: AsyncSession) -> Mapping[UUID, Sequence[str]]:
    query = (
        select(PrincipalRole.principal_id, RolePermission.resource)
        .join(RolePermission, RolePermission.role_id == PrincipalRole.role_id)
        .where(RolePermission.verb == "model:invoke")
        .distinct()
    )
    return await _by_principal(session, query.order_by(RolePermission.resource))


async def _by_principal(session: AsyncSession, query: Select[UUID, str]) -> Mapping[UUID, Sequence[str]]:
    groups: defaultdict[UUID, list[str]] = defaultdict(list)
    for principal_id, text in await session.execute(query):
        groups[principal_id].append(text)
    return groups


async def _frontend_models(session: AsyncSession) -> Sequence[FrontendModelRow]:
    query = select(
        FrontendModel.id,
        FrontendModel.name,
        FrontendModel.policy,
        FrontendModel.retry_on_timeout,
        _unix(FrontendModel.created_at),
    )
    return await _read(session, query.order_by(FrontendModel.name), FrontendModelRow)


async def fallback(session: AsyncSession) -> str | None:
    """The name of the frontend model that may end every chain."""
    value = await session.scalar(select(SettingRow.value).where(SettingRow.name == FALLBACK_SETTING))
    return value if isinstance(value, str) else None


def _unix(instant: Any) -> ColumnElement[float]:
    """Unix seconds (Postgres extracts a decimal, of which msgpack knows nothing)."""
    return cast(extract("epoch", instant), Double)
