"""SQL of principals and the roles that they hold."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Literal
from uuid import UUID

from sqlalchemy import ColumnElement, Row, ScalarSelect, delete, func, select, text
from sqlalchemy.dialects.postgresql import aggregate_order_by, insert
from sqlalchemy.ext.asyncio import AsyncSession

from fastllm_control.access import VERBS, Permission
from fastllm_control.advisory_locks import AdvisoryLock, take
from fastllm_control.naming import is_named
from fastllm_control.tables.access import Principal, PrincipalRole, Role, RolePermission

Way = Literal["access", "everything", "every model"]
"""What somebody must be able to do for FastLLM to be administered: change who may what; everything but to
invoke; and, beside all that, grant any model, which takes holding `model/*`."""

_ADMINISTERING = text(
    "SELECT count(*) FILTER (WHERE 'access:write' = ANY(held.verbs)),"
    " count(*) FILTER (WHERE held.verbs @> CAST(:verbs AS text[])),"
    " count(*) FILTER (WHERE held.verbs @> CAST(:verbs AS text[]) AND held.every_model)"
    " FROM (SELECT array_agg(rp.verb) AS verbs,"
    " bool_or(rp.verb = 'model:invoke' AND rp.resource = 'model/*') AS every_model"
    " FROM principals p JOIN principal_roles pr ON pr.principal_id = p.id"
    " JOIN role_permissions rp ON rp.role_id = pr.role_id"
    " WHERE p.password_hash IS NOT NULL OR EXISTS"
    "  (SELECT FROM api_keys k WHERE k.principal_id = p.id AND k.scope = 'admin' AND NOT k.disabled"
    "   AND (k.expires_at IS NULL OR k.expires_at > :now))"
    " GROUP BY p.id) AS held"
)


async def find(session: AsyncSession, reference: str, *, lock: bool = False) -> Principal | None:
    """By id or name; `lock` holds the row until the end of the transaction."""
    query = select(Principal).where(is_named(reference, Principal.id, Principal.name))
    return await session.scalar(query.with_for_update() if lock else query)


async def by_name(session: AsyncSession, name: str) -> Principal | None:
    return (await session.execute(select(Principal).where(Principal.name == name))).scalar_one_or_none()


async def unchanged(session: AsyncSession, principal_id: UUID) -> Principal | None:
    """The principal, held as it is until the transaction ends; others may hold it so too."""
    query = select(Principal).where(Principal.id == principal_id).with_for_update(read=True)
    return (await session.execute(query)).scalar_one_or_none()


async def lock(session: AsyncSession, principal_id: UUID) -> None:
    """One change at a time of what hangs on the principal, also where there is no row of it yet."""
    query = select(Principal.id).where(Principal.id == principal_id)
    await session.execute(query.with_for_update(key_share=True))


async def page(
    session: AsyncSession,
    limit: int,
    after: UUID | None = None,
    *,
    kind: str | None = None,
    name_prefix: str | None = None,
    role: str | None = None,
) -> Sequence[Row[Principal, list[str]]]:
    """Up to `limit` rows of (Principal, role names), oldest first; `role` (id or name) is held by them."""
    conditions: list[ColumnElement[bool]] = []
    if after is not None:
        conditions.append(Principal.id > after)
    if kind is not None:
        conditions.append(Principal.kind == kind)
    if name_prefix is not None:
        conditions.append(Principal.name.startswith(name_prefix, autoescape=True))
    if role is not None:
        holders = select(PrincipalRole.principal_id).join(Role, Role.id == PrincipalRole.role_id)
        conditions.append(Principal.id.in_(holders.where(is_named(role, Role.id, Role.name))))
    query = select(Principal, _role_names()).where(*conditions).order_by(Principal.id).limit(limit)
    return (await session.execute(query)).all()


async def role_names(session: AsyncSession, principal_id: UUID) -> list[str]:
    query = (
        select(Role.name)
        .join(PrincipalRole, PrincipalRole.role_id == Role.id)
        .where(PrincipalRole.principal_id == principal_id)
        .order_by(Role.name)
    )
    return list((await session.execute(query)).scalars())


async def permissions(session: AsyncSession, principal_id: UUID) -> frozenset[Permission]:
    """All that a principal's roles permit."""
    query = (
        select(RolePermission.verb, RolePermission.resource)
        .join(PrincipalRole, PrincipalRole.role_id == RolePermission.role_id)
        .where(PrincipalRole.principal_id == principal_id, RolePermission.verb.in_(VERBS))
    )
    # The condition leaves only verbs of the closed list.
    return frozenset(Permission(verb, resource) for verb, resource in (await session.execute(query)))  # type: ignore[arg-type]


async def hold_role(session: AsyncSession, principal_id: UUID, role_id: UUID) -> bool:
    """Returns whether that is new."""
    query = insert(PrincipalRole).values(principal_id=principal_id, role_id=role_id).on_conflict_do_nothing()
    return bool((await session.execute(query.returning(PrincipalRole.role_id))).scalar_one_or_none())


async def drop_role(session: AsyncSession, principal_id: UUID, role_id: UUID) -> bool:
    """Returns whether it was held."""
    query = delete(PrincipalRole).where(
        PrincipalRole.principal_id == principal_id, PrincipalRole.role_id == role_id
    )
    return bool((await session.execute(query.returning(PrincipalRole.role_id))).scalar_one_or_none())


async def lock_administering(session: AsyncSession) -> None:
    """Two changes that each leave the other's administrator must not pass side by side."""
    await take(session, AdvisoryLock.ADMINISTERING)


async def count_administering(session: AsyncSession, now: datetime.datetime) -> int:
    """How many principals hold every permission but `model:invoke` and can prove who they are."""
    return (await _administering(session, now))["everything"]


async def ways_of_administering(session: AsyncSession, now: datetime.datetime) -> frozenset[Way]:
    """The ways that at least one principal has who can prove who it is."""
    return frozenset(way for way, count in (await _administering(session, now)).items() if count)


async def _administering(session: AsyncSession, now: datetime.datetime) -> dict[Way, int]:
    verbs = sorted(VERBS - {"model:invoke"})
    row = (await session.execute(_ADMINISTERING, {"verbs": verbs, "now": now})).one()
    return {"access": row[0], "everything": row[1], "every model": row[2]}


def _role_names() -> ScalarSelect[list[str]]:
    names = func.coalesce(func.array_agg(aggregate_order_by(Role.name, Role.name)), text("'{}'::text[]"))
    return (
        select(names)
        .join(PrincipalRole, PrincipalRole.role_id == Role.id)
        .where(PrincipalRole.principal_id == Principal.id)
        .scalar_subquery()
    )
