"""All that a configuration file can say, in a few reads: SQL only. For one view of it the session must be a
repeatable-read one, or hold what keeps writers out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from fastllm_control.access import VERBS, Permission
from fastllm_control.advisory_locks import AdvisoryLock, take
from fastllm_control.forms import Target
from fastllm_control.tables.access import (
    ApiKey,
    Budget,
    Limit,
    Principal,
    PrincipalRole,
    Role,
    RolePermission,
)
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


class Stored(NamedTuple):
    """Rows, each kind by name; mappings are by the id of what owns the values."""

    providers: Sequence[Provider]
    models: Sequence[ProviderModel]
    backends: Sequence[Backend]
    pools: Sequence[Pool]
    members: Mapping[UUID, Sequence[PoolMember]]
    frontends: Sequence[FrontendModel]
    targets: Mapping[UUID, Sequence[Target]]
    rules: Mapping[UUID, Sequence[RoutingRule]]
    rule_targets: Mapping[UUID, Sequence[Target]]
    roles: Sequence[Role]
    permissions: Mapping[UUID, Sequence[Permission]]
    principals: Sequence[Principal]
    held: Mapping[UUID, Sequence[str]]
    limits: Mapping[UUID, Limit]
    budgets: Mapping[UUID, Budget]
    keys: Mapping[UUID, int]


async def hold(session: AsyncSession) -> None:
    """One applies a file at a time; the others wait here until it is through."""
    await take(session, AdvisoryLock.APPLY)


async def read(session: AsyncSession) -> Stored:
    """Everything."""
    return Stored(
        providers=await _all(session, Provider, Provider.name),
        models=await _all(session, ProviderModel, ProviderModel.name),
        backends=await _all(session, Backend, Backend.created_at, Backend.id),
        pools=await _all(session, Pool, Pool.name),
        members=await _members(session),
        frontends=await _all(session, FrontendModel, FrontendModel.name),
        targets=await _targets(session, DefaultTarget, DefaultTarget.frontend_model_id),
        rules=await _rules(session),
        rule_targets=await _targets(session, RuleTarget, RuleTarget.rule_id),
        roles=await _all(session, Role, Role.name),
        permissions=await _permissions(session),
        principals=await _all(session, Principal, Principal.name),
        held=await _held(session),
        limits={row.principal_id: row for row in await _all(session, Limit)},
        budgets={row.principal_id: row for row in await _all(session, Budget)},
        keys=await _keys(session),
    )


async def backend_ids(session: AsyncSession) -> Mapping[tuple[str, str, str], UUID]:
    """By provider, provider model and upstream name."""
    query = (
        select(Backend.id, Provider.name, ProviderModel.name, Backend.upstream_model)
        .join(Provider, Provider.id == Backend.provider_id)
        .join(ProviderModel, ProviderModel.id == Backend.provider_model_id)
    )
    return {(provider, model, name): found for found, provider, model, name in await session.execute(query)}


async def _all(session: AsyncSession, table: Any, *order: Any) -> Sequence[Any]:
    query = select(table).order_by(*order).execution_options(populate_existing=True)
    return (await session.scalars(query)).all()


async def _members(session: AsyncSession) -> Mapping[UUID, Sequence[PoolMember]]:
    found: defaultdict[UUID, list[PoolMember]] = defaultdict(list)
    for row in await _all(session, PoolMember, PoolMember.pool_id, PoolMember.position):
        found[row.pool_id].append(row)
    return found


async def _rules(session: AsyncSession) -> Mapping[UUID, Sequence[RoutingRule]]:
    found: defaultdict[UUID, list[RoutingRule]] = defaultdict(list)
    for row in await _all(session, RoutingRule, RoutingRule.frontend_model_id, RoutingRule.position):
        found[row.frontend_model_id].append(row)
    return found


async def _targets(session: AsyncSession, table: Any, owner: Any) -> Mapping[UUID, Sequence[Target]]:
    found: defaultdict[UUID, list[Target]] = defaultdict(list)
    query = select(owner, table.target, table.weight).order_by(owner, table.position)
    for owner_id, target, weight in await session.execute(query):
        found[owner_id].append(Target(target, weight))
    return found


async def _permissions(session: AsyncSession) -> Mapping[UUID, Sequence[Permission]]:
    query = select(RolePermission.role_id, RolePermission.verb, RolePermission.resource)
    query = query.where(RolePermission.verb.in_(VERBS))
    found: defaultdict[UUID, list[Permission]] = defaultdict(list)
    for role_id, verb, resource in await session.execute(query.order_by(RolePermission.verb, "resource")):
        found[role_id].append(Permission(verb, resource))  # type: ignore[arg-type]  # of the closed list
    return found


async def _held(session: AsyncSession) -> Mapping[UUID, Sequence[str]]:
    query = select(PrincipalRole.principal_id, Role.name).join(Role, Role.id == PrincipalRole.role_id)
    found: defaultdict[UUID, list[str]] = defaultdict(list)
    for principal_id, role in await session.execute(query.order_by(Role.name)):
        found[principal_id].append(role)
    return found


async def _keys(session: AsyncSession) -> Mapping[UUID, int]:
    """Per principal how many keys are not revoked."""
    query = select(ApiKey.principal_id, func.count()).where(~ApiKey.disabled).group_by(ApiKey.principal_id)
    return {principal_id: int(count) for principal_id, count in await session.execute(query)}
