"""Principals: who may call, the roles that they hold, their passwords."""

from __future__ import annotations

import datetime

from fastllm_control.errors import Conflict, Invalid
from fastllm_control.naming import missing, refuse_uuid
from fastllm_control.repositories import conditions, principals, roles, sessions
from fastllm_control.services.grants import (
    administration_kept,
    refuse_against_stronger,
    refuse_more_than_held,
)
from fastllm_control.tables.access import Principal
from fastllm_control.transaction import SECRET_SET, Change, Transaction
from fastllm_shared.ids import uuid7
from fastllm_shared.snapshot import PrincipalKind


async def require(
    tx: Transaction, reference: str, field: str | None = None, *, lock: bool = False
) -> Principal:
    """The principal of an id or name. Raises `NotFound`, or `Invalid` when a body's `field` named it."""
    found = await principals.find(tx.session, reference, lock=lock)
    if found is None:
        absent = missing("principal", reference)
        raise absent if field is None else Invalid(absent.code, absent.message, field)
    return found


async def create(tx: Transaction, name: str, kind: PrincipalKind) -> Principal:
    """A new principal, which holds nothing. Raises `Conflict` when the name is taken."""
    refuse_uuid(name)
    await _refuse_taken(tx, name)
    row = Principal(id=uuid7(), name=name, kind=kind)
    tx.session.add(row)
    await tx.session.flush()
    await tx.session.refresh(row)
    tx.audit("principal.create", "principal", row.id, name, {"kind": Change(None, kind)})
    tx.content_changed()
    return row


async def rename(tx: Transaction, reference: str, name: str) -> Principal:
    """Keys, grants, limits and usage hang on the id, and stay; rules that name the principal follow."""
    row = await require(tx, reference, lock=True)
    if name == row.name:
        return row
    await _refuse_stronger(tx, row, f"renaming {row.name!r}")
    refuse_uuid(name)
    await _refuse_taken(tx, name)
    tx.audit("principal.update", "principal", row.id, name, {"name": Change(row.name, name)})
    await conditions.rename(tx.session, "principals", row.name, name)
    row.name = name
    tx.content_changed()
    return row


async def delete(tx: Transaction, reference: str, now: datetime.datetime) -> None:
    """With its keys, sessions, limits and budget; usage keeps the name."""
    async with administration_kept(tx, now):
        row = await require(tx, reference, lock=True)
        await _refuse_stronger(tx, row, f"deleting {row.name!r}")
        await tx.session.delete(row)
        tx.audit("principal.delete", "principal", row.id, row.name, {"kind": Change(row.kind, None)})
        tx.content_changed()


async def give_role(tx: Transaction, reference: str, role: str) -> list[str]:
    """Returns the roles that are held then. Giving a held one changes nothing."""
    row = await require(tx, reference, lock=True)
    given = await roles.find(tx.session, role)
    if given is None:
        raise _no_role(role)
    permissions = await roles.permissions(tx.session, [given.id])
    refuse_more_than_held(tx.actor, permissions[given.id], f"giving the role {given.name!r}")
    before = await principals.role_names(tx.session, row.id)
    if await principals.hold_role(tx.session, row.id, given.id):
        after = sorted([*before, given.name])
        tx.audit("principal.give_role", "principal", row.id, row.name, {"roles": Change(before, after)})
        tx.content_changed()
    return await principals.role_names(tx.session, row.id)


async def take_role(tx: Transaction, reference: str, role: str, now: datetime.datetime) -> list[str]:
    """Returns the roles that are held then. Raises `NotFound` when the role was not held."""
    async with administration_kept(tx, now):
        row = await require(tx, reference, lock=True)
        taken = await roles.find(tx.session, role)
        if taken is None:
            raise _no_role(role)
        held = (await roles.permissions(tx.session, [taken.id]))[taken.id]
        refuse_against_stronger(tx.actor, held, f"taking the role {taken.name!r}")
        before = await principals.role_names(tx.session, row.id)
        if not await principals.drop_role(tx.session, row.id, taken.id):
            raise missing("role", role, "role")
        after = [name for name in before if name != taken.name]
        tx.audit("principal.take_role", "principal", row.id, row.name, {"roles": Change(before, after)})
        tx.content_changed()
    return after


async def set_password(tx: Transaction, reference: str, password_hash: str) -> Principal:
    """Ends the principal's other sessions. Raises `Invalid` for a service account: it logs in with keys."""
    row = await require(tx, reference, lock=True)
    if row.kind != "user":
        raise Invalid(
            "not_a_person", "only a principal of the kind `user` has a password; service accounts have keys"
        )
    if tx.actor.principal_id != row.id:
        held = await principals.permissions(tx.session, row.id)
        refuse_more_than_held(tx.actor, held, f"setting the password of {row.name!r}")
    row.password_hash = password_hash
    await sessions.revoke_all(tx.session, row.id, but=tx.actor.session_id)
    tx.audit("principal.set_password", "principal", row.id, row.name, {"password": Change(None, SECRET_SET)})
    return row


async def _refuse_stronger(tx: Transaction, row: Principal, doing: str) -> None:
    refuse_against_stronger(tx.actor, await principals.permissions(tx.session, row.id), doing)


async def _refuse_taken(tx: Transaction, name: str) -> None:
    if await principals.by_name(tx.session, name) is not None:
        raise Conflict("already_exists", f"there is a principal {name!r} already", "name")


def _no_role(role: str) -> Invalid:
    absent = missing("role", role)
    return Invalid(absent.code, absent.message, "role")
