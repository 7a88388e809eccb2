"""SQL of roles and their permissions."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from fastllm_control.access import VERBS, Permission
from fastllm_control.naming import is_named
from fastllm_control.tables.access import Principal, PrincipalRole, Role, RolePermission


async def find(session: AsyncSession, reference: str, *, lock: bool = False) -> Role | None:
    """By id or name; `lock` holds the row until the end of the transaction."""
    query = select(Role).where(is_named(reference, Role.id, Role.name))
    return await session.scalar(query.with_for_update() if lock else query)


async def page(
    session: AsyncSession,
    limit: int,
    after: UUID | None,
    *,
    name_prefix: str | None = None,
    principal: str | None = None,
    resource: str | None = None,
) -> Sequence[Role]:
    """Up to `limit` roles, oldest first; `principal` (id or name) holds them, they grant `resource`."""
    query = select(Role).order_by(Role.id).limit(limit)
    if after is not None:
        query = query.where(Role.id > after)
    if name_prefix is not None:
        query = query.where(Role.name.startswith(name_prefix, autoescape=True))
    if principal is not None:
        held = (
            select(PrincipalRole.role_id)
            .join(Principal, Principal.id == PrincipalRole.principal_id)
            .where(is_named(principal, Principal.id, Principal.name))
        )
        query = query.where(Role.id.in_(held))
    if resource is not None:
        granting = select(RolePermission.role_id).where(RolePermission.resource == resource)
        query = query.where(Role.id.in_(granting))
    return (await session.execute(query)).scalars().all()


async def permissions(session: AsyncSession, role_ids: Sequence[UUID]) -> dict[UUID, list[Permission]]:
    """The permissions of each of the roles, in order."""
    query = (
        select(RolePermission.role_id, RolePermission.verb, RolePermission.resource)
        .where(RolePermission.role_id.in_(role_ids), RolePermission.verb.in_(VERBS))
        .order_by(RolePermission.verb, RolePermission.resource)
    )
    found: dict[UUID, list[Permission]] = {role_id: [] for role_id in role_ids}
    for role_id, verb, resource in await session.execute(query):
        found[role_id].append(Permission(verb, resource))  # type: ignore[arg-type]  # of the closed list
    return found


async def add_permission(session: AsyncSession, role_id: UUID, permission: Permission) -> bool:
    """Returns whether that is new."""
    values = {"role_id": role_id, "verb": permission.verb, "resource": permission.resource}
    query = insert(RolePermission).values(**values).on_conflict_do_nothing()
    return bool((await session.execute(query.returning(RolePermission.verb))).scalar_one_or_none())


async def drop_permission(session: AsyncSession, role_id: UUID, permission: Permission) -> bool:
    """Returns whether it was there."""
    query = delete(RolePermission).where(
        RolePermission.role_id == role_id,
        RolePermission.verb == permission.verb,
        RolePermission.resource == permission.resource,
    )
    return bool((await session.execute(query.returning(RolePermission.verb))).scalar_one_or_none())


async def count_holders(session: AsyncSession, role_id: UUID) -> int:
    query = select(func.count()).select_from(PrincipalRole).where(PrincipalRole.role_id == role_id)
    return int((await session.execute(query)).scalar_one())
