"""Routing rules and their targets: SQL only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from uuid import UUID

from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from fastllm_control.forms import Target
from fastllm_control.tables.configuration import FrontendModel, RoutingRule, RuleTarget


async def find(session: AsyncSession, rule_id: UUID) -> RoutingRule | None:
    return await session.get(RoutingRule, rule_id)


async def of_models(session: AsyncSession, model_ids: Sequence[UUID]) -> Mapping[UUID, Sequence[RoutingRule]]:
    """Per model its rules, by position, as the database has them now."""
    query = (
        select(RoutingRule)
        .where(RoutingRule.frontend_model_id.in_(model_ids))
        .order_by(RoutingRule.frontend_model_id, RoutingRule.position)
        .execution_options(populate_existing=True)
    )
    found: defaultdict[UUID, list[RoutingRule]] = defaultdict(list)
    for row in await session.scalars(query):
        found[row.frontend_model_id].append(row)
    return found


async def page(session: AsyncSession, model_id: UUID, limit: int, after: int | None) -> Sequence[RoutingRule]:
    """Up to `limit` rules of one model, by position."""
    query = select(RoutingRule).where(RoutingRule.frontend_model_id == model_id)
    if after is not None:
        query = query.where(RoutingRule.position > after)
    return (await session.scalars(query.order_by(RoutingRule.position).limit(limit))).all()


async def counts(session: AsyncSession, model_ids: Sequence[UUID]) -> Mapping[UUID, int]:
    """Per model how many rules it has; none: left out."""
    query = (
        select(RoutingRule.frontend_model_id, func.count())
        .where(RoutingRule.frontend_model_id.in_(model_ids))
        .group_by(RoutingRule.frontend_model_id)
    )
    return {row[0]: row[1] for row in await session.execute(query)}


async def targets_of(session: AsyncSession, rule_ids: Sequence[UUID]) -> Mapping[UUID, Sequence[Target]]:
    """Per rule its targets, in their order."""
    query = (
        select(RuleTarget.rule_id, RuleTarget.target, RuleTarget.weight)
        .where(RuleTarget.rule_id.in_(rule_ids))
        .order_by(RuleTarget.rule_id, RuleTarget.position)
    )
    found: defaultdict[UUID, list[Target]] = defaultdict(list)
    for rule_id, target, weight in await session.execute(query):
        found[rule_id].append(Target(target, weight))
    return found


async def replace_targets(session: AsyncSession, rule_id: UUID, targets: Sequence[Target]) -> None:
    """Put `targets` in the place of all of a rule's targets."""
    await session.execute(delete(RuleTarget).where(RuleTarget.rule_id == rule_id))
    rows = [
        {"rule_id": rule_id, "position": position, "target": entry.target, "weight": entry.weight}
        for position, entry in enumerate(targets)
    ]
    if rows:
        await session.execute(insert(RuleTarget), rows)


async def jumps(session: AsyncSession) -> Sequence[tuple[str, str]]:
    """Every jump there is: from the frontend model of that name to the one of this name."""
    query = (
        select(FrontendModel.name, RoutingRule.jump)
        .join(FrontendModel, FrontendModel.id == RoutingRule.frontend_model_id)
        .where(RoutingRule.jump.is_not(None))
        .distinct()
    )
    return [(name, jump) for name, jump in await session.execute(query) if jump is not None]
