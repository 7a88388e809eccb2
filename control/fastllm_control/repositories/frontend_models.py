"""Frontend models, their default targets, and what is bound to their names: SQL only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from uuid import UUID

from sqlalchemy import delete, literal, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from fastllm_control.forms import Target
from fastllm_control.naming import is_named
from fastllm_control.repositories.content import FALLBACK_SETTING
from fastllm_control.tables.access import RolePermission
from fastllm_control.tables.audit import SettingRow
from fastllm_control.tables.configuration import DefaultTarget, FrontendModel, RoutingRule, RuleTarget


async def find(session: AsyncSession, reference: str, *, lock: bool = False) -> FrontendModel | None:
    """By id or name; `lock` holds the row until the end of the transaction."""
    query = select(FrontendModel).where(is_named(reference, FrontendModel.id, FrontendModel.name))
    return await session.scalar(query.with_for_update() if lock else query)


async def name_taken(session: AsyncSession, name: str) -> bool:
    """Whether a frontend model of that name exists."""
    return await session.scalar(select(FrontendModel.id).where(FrontendModel.name == name)) is not None


async def page(
    session: AsyncSession,
    limit: int,
    after: UUID | None,
    target: str | None,
    name_prefix: str | None = None,
) -> Sequence[FrontendModel]:
    """Up to `limit` models in the order in which they were made; `target` is among their targets, those
    of their rules included."""
    query = select(FrontendModel).order_by(FrontendModel.id).limit(limit)
    if after is not None:
        query = query.where(FrontendModel.id > after)
    if target is not None:
        leading = select(DefaultTarget.frontend_model_id).where(DefaultTarget.target == target)
        deciding = (
            select(RoutingRule.frontend_model_id)
            .join(RuleTarget, RuleTarget.rule_id == RoutingRule.id)
            .where(RuleTarget.target == target)
        )
        query = query.where(or_(FrontendModel.id.in_(leading), FrontendModel.id.in_(deciding)))
    if name_prefix is not None:
        query = query.where(FrontendModel.name.startswith(name_prefix, autoescape=True))
    return (await session.scalars(query)).all()


async def targets_of(session: AsyncSession, model_ids: Sequence[UUID]) -> Mapping[UUID, Sequence[Target]]:
    """Per model its default targets, in their order."""
    query = (
        select(DefaultTarget.frontend_model_id, DefaultTarget.target, DefaultTarget.weight)
        .where(DefaultTarget.frontend_model_id.in_(model_ids))
        .order_by(DefaultTarget.position)
    )
    found: defaultdict[UUID, list[Target]] = defaultdict(list)
    for model_id, target, weight in await session.execute(query):
        found[model_id].append(Target(target, weight))
    return found


async def replace_targets(session: AsyncSession, model_id: UUID, targets: Sequence[Target]) -> None:
    """Put `targets` in the place of all default targets."""
    await session.execute(delete(DefaultTarget).where(DefaultTarget.frontend_model_id == model_id))
    rows = [
        {"frontend_model_id": model_id, "position": position, "target": entry.target, "weight": entry.weight}
        for position, entry in enumerate(targets)
    ]
    if rows:
        await session.execute(insert(DefaultTarget), rows)


async def move_grants(session: AsyncSession, before: str, after: str) -> None:
    """Grants are held by name: they follow a model that is renamed."""
    old, new = f"model/{before}", f"model/{after}"
    held = select(RolePermission.role_id, RolePermission.verb, literal(new)).where(
        RolePermission.resource == old
    )
    moved = insert(RolePermission).from_select(["role_id", "verb", "resource"], held)
    await session.execute(moved.on_conflict_do_nothing())
    await session.execute(delete(RolePermission).where(RolePermission.resource == old))


async def move_references(session: AsyncSession, before: str, after: str) -> None:
    """Jumps and the fallback name frontend models: they follow one that is renamed."""
    await session.execute(update(RoutingRule).where(RoutingRule.jump == before).values(jump=after))
    setting = await session.get(SettingRow, FALLBACK_SETTING)
    if setting is not None and setting.value == before:
        setting.value = after


async def existing(session: AsyncSession, names: Sequence[str]) -> frozenset[str]:
    """Those of `names` that a frontend model bears."""
    query = select(FrontendModel.name).where(FrontendModel.name.in_(names))
    return frozenset(await session.scalars(query)) if names else frozenset()
