"""Roles: named sets of permissions."""

from __future__ import annotations

import datetime

from fastllm_control.access import Permission
from fastllm_control.errors import Conflict, Invalid, NotFound
from fastllm_control.naming import missing, refuse_uuid
from fastllm_control.repositories import conditions, roles
from fastllm_control.services.grants import (
    administration_kept,
    refuse_against_stronger,
    refuse_more_than_held,
)
from fastllm_control.tables.access import Role
from fastllm_control.transaction import Change, Transaction
from fastllm_shared.ids import uuid7


async def require(tx: Transaction, reference: str, *, lock: bool = False) -> Role:
    """The role of an id or name. Raises `NotFound`."""
    found = await roles.find(tx.session, reference, lock=lock)
    if found is None:
        raise missing("role", reference)
    return found


async def create(tx: Transaction, name: str) -> Role:
    """A new role without permissions. Raises `Conflict` when the name is taken."""
    await _refuse_taken(tx, name)
    row = Role(id=uuid7(), name=name, built_in=False)
    tx.session.add(row)
    await tx.session.flush()
    await tx.session.refresh(row)
    tx.audit("role.create", "role", row.id, name)
    return row


async def rename(tx: Transaction, reference: str, name: str) -> Role:
    """Holders keep it, and rules that name it follow. Raises `Conflict` when the name is taken."""
    row = await require(tx, reference, lock=True)
    if name == row.name:
        return row
    _refuse_built_in(row)
    held = (await roles.permissions(tx.session, [row.id]))[row.id]
    refuse_against_stronger(tx.actor, held, f"renaming the role {row.name!r}")
    await _refuse_taken(tx, name)
    tx.audit("role.update", "role", row.id, name, {"name": Change(row.name, name)})
    await conditions.rename(tx.session, "roles", row.name, name)
    row.name = name
    tx.content_changed()
    return row


async def delete(tx: Transaction, reference: str, now: datetime.datetime) -> None:
    """Whoever held it no longer does."""
    async with administration_kept(tx, now):
        row = await _changeable(tx, reference)
        held = (await roles.permissions(tx.session, [row.id]))[row.id]
        refuse_against_stronger(tx.actor, held, f"deleting the role {row.name!r}")
        holders = await roles.count_holders(tx.session, row.id)
        await tx.session.delete(row)
        changes = {"permissions": Change(_shown(held), None), "holders": Change(holders, 0)}
        tx.audit("role.delete", "role", row.id, row.name, changes)
        tx.content_changed()


async def add_permission(tx: Transaction, reference: str, permission: Permission) -> Role:
    """Adding one that is there changes nothing."""
    row = await _changeable(tx, reference)
    checked = checked_permission(permission)
    refuse_more_than_held(tx.actor, [checked], f"adding to the role {row.name!r}")
    before = (await roles.permissions(tx.session, [row.id]))[row.id]
    if await roles.add_permission(tx.session, row.id, checked):
        changes = {"permissions": Change(_shown(before), _shown([*before, checked]))}
        tx.audit("role.add_permission", "role", row.id, row.name, changes)
        _tell_proxies(tx, checked)
    return row


async def drop_permission(
    tx: Transaction, reference: str, permission: Permission, now: datetime.datetime
) -> Role:
    """Raises `NotFound` when the role does not hold it."""
    async with administration_kept(tx, now):
        row = await _changeable(tx, reference)
        checked = checked_permission(permission)
        refuse_against_stronger(tx.actor, [checked], f"taking from the role {row.name!r}")
        before = (await roles.permissions(tx.session, [row.id]))[row.id]
        if not await roles.drop_permission(tx.session, row.id, checked):
            message = f"the role {row.name!r} does not hold {checked.verb} on {checked.resource}"
            raise NotFound("permission_not_found", message)
        left = [held for held in before if held != checked]
        changes = {"permissions": Change(_shown(before), _shown(left))}
        tx.audit("role.drop_permission", "role", row.id, row.name, changes)
        _tell_proxies(tx, checked)
    return row


def _tell_proxies(tx: Transaction, permission: Permission) -> None:
    """Of permissions they are served those to call models alone."""
    if permission.verb == "model:invoke":
        tx.content_changed()


async def _refuse_taken(tx: Transaction, name: str) -> None:
    refuse_uuid(name)
    if await roles.find(tx.session, name) is not None:
        raise Conflict("already_exists", f"there is a role {name!r} already", "name")


def checked_permission(permission: Permission) -> Permission:
    """The permission, if its resource suits its verb. Raises `Invalid`."""
    if permission.verb != "model:invoke":
        if permission.resource != "*":
            raise Invalid("invalid_value", f"{permission.verb} is held on `*`", "resource")
        return permission
    kind, _, name = permission.resource.partition("/")
    if kind != "model" or not name:
        message = "model:invoke is held on `model/<frontend model>`, or on `model/*` for all of them"
        raise Invalid("invalid_value", message, "resource")
    return permission


async def _changeable(tx: Transaction, reference: str) -> Role:
    row = await require(tx, reference, lock=True)
    _refuse_built_in(row)
    return row


def _refuse_built_in(row: Role) -> None:
    if row.built_in:
        message = f"{row.name!r} is one of the built-in roles, which do not change: make a role of your own"
        raise Conflict("built_in_role", message)


def _shown(permissions: list[Permission]) -> list[str]:
    return sorted(f"{permission.verb} {permission.resource}" for permission in permissions)
