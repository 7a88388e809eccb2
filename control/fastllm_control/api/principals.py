"""`/admin/principals`: who may call, with roles and passwords."""

from __future__ import annotations

import datetime
from typing import Annotated
from uuid import UUID

import msgspec

from fastllm_control.naming import Name, missing
from fastllm_control.operations import Call, Deleted, Operation
from fastllm_control.paging import Page, PageQuery, Wanted, page_of
from fastllm_control.repositories import principals as repository
from fastllm_control.services import principals as service
from fastllm_control.tables.access import Principal
from fastllm_shared.snapshot import PrincipalKind

Password = Annotated[str, msgspec.Meta(min_length=8, max_length=1000)]


class PrincipalCreate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Name
    kind: PrincipalKind = "service_account"


class PrincipalUpdate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Name | msgspec.UnsetType = msgspec.UNSET


class PrincipalRow(msgspec.Struct, frozen=True):
    id: UUID
    name: str
    kind: PrincipalKind
    roles: list[str]
    has_password: bool
    created_at: datetime.datetime


class PrincipalQuery(PageQuery, frozen=True, forbid_unknown_fields=True):
    """`name_prefix` is what the name begins with, `role` (id or name) is among the roles."""

    kind: PrincipalKind | None = None
    name_prefix: Wanted | None = None
    role: Wanted | None = None


class RoleReference(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: Name


class RolesHeld(msgspec.Struct, frozen=True):
    roles: list[str]


class PasswordChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    password: Password

    def __repr__(self) -> str:
        return "PasswordChange()"


class Done(msgspec.Struct, frozen=True):
    """What was asked for is so now."""

    id: UUID
    name: str


async def index(call: Call) -> Page[PrincipalRow]:
    query: PrincipalQuery = call.query
    async with call.services.database.read() as session:
        found = await repository.page(
            session,
            query.limit + 1,
            query.after_id(),
            kind=query.kind,
            name_prefix=query.name_prefix,
            role=query.role,
        )
    return page_of([_row(row, roles) for row, roles in found], query.limit, lambda row: row.id)


async def show(call: Call) -> PrincipalRow:
    async with call.services.database.read() as session:
        row = await repository.find(session, call.path["id"])
        if row is None:
            raise missing("principal", call.path["id"])
        return _row(row, await repository.role_names(session, row.id))


async def create(call: Call) -> PrincipalRow:
    body: PrincipalCreate = call.body
    return _row(await service.create(call.tx, body.name, body.kind), [])


async def update(call: Call) -> PrincipalRow:
    body: PrincipalUpdate = call.body
    if isinstance(body.name, str):
        row = await service.rename(call.tx, call.path["id"], body.name)
    else:
        row = await service.require(call.tx, call.path["id"])
    return _row(row, await repository.role_names(call.tx.session, row.id))


async def delete(call: Call) -> Deleted:
    await service.delete(call.tx, call.path["id"], call.services.clock())
    return Deleted()


async def give_role(call: Call) -> RolesHeld:
    body: RoleReference = call.body
    return RolesHeld(await service.give_role(call.tx, call.path["id"], body.role))


async def take_role(call: Call) -> RolesHeld:
    body: RoleReference = call.body
    now = call.services.clock()
    return RolesHeld(await service.take_role(call.tx, call.path["id"], body.role, now))


async def set_password(call: Call) -> Done:
    """Opens its transaction only after hashing, which takes a tenth of a second."""
    body: PasswordChange = call.body
    hashed = await call.services.passwords.hash(body.password)
    async with call.begin() as tx:
        row = await service.set_password(tx, call.path["id"], hashed)
    return Done(row.id, row.name)


def _row(row: Principal, roles: list[str]) -> PrincipalRow:
    kind: PrincipalKind = "user" if row.kind == "user" else "service_account"
    return PrincipalRow(row.id, row.name, kind, list(roles), row.password_hash is not None, row.created_at)


ROUTES = (
    Operation(
        method="GET",
        path="/admin/principals",
        requires="config:read",
        summary="List principals",
        handler=index,
        query=PrincipalQuery,
        result=Page[PrincipalRow],
    ),
    Operation(
        method="POST",
        path="/admin/principals",
        requires="access:write",
        summary="Create a principal, which holds nothing yet",
        handler=create,
        body=PrincipalCreate,
        result=PrincipalRow,
        status=201,
        errors=(409,),
    ),
    Operation(
        method="GET",
        path="/admin/principals/{id}",
        requires="config:read",
        summary="Show a principal",
        handler=show,
        result=PrincipalRow,
        errors=(404,),
    ),
    Operation(
        method="PATCH",
        path="/admin/principals/{id}",
        requires="access:write",
        summary="Rename a principal",
        handler=update,
        body=PrincipalUpdate,
        result=PrincipalRow,
        errors=(404, 409),
    ),
    Operation(
        method="DELETE",
        path="/admin/principals/{id}",
        requires="access:write",
        summary="Delete a principal with its keys, sessions, limits and budget",
        handler=delete,
        result=Deleted,
        errors=(404, 409),
    ),
    Operation(
        method="POST",
        path="/admin/principals/{id}/roles",
        requires="access:write",
        summary="Give a principal a role",
        handler=give_role,
        body=RoleReference,
        result=RolesHeld,
        status=201,
        errors=(404,),
    ),
    Operation(
        method="DELETE",
        path="/admin/principals/{id}/roles",
        requires="access:write",
        summary="Take a role from a principal",
        handler=take_role,
        body=RoleReference,
        result=RolesHeld,
        errors=(404, 409),
    ),
    Operation(
        method="PUT",
        path="/admin/principals/{id}/password",
        requires="access:write",
        summary="Set a person's password and end that person's other sessions",
        handler=set_password,
        body=PasswordChange,
        result=Done,
        errors=(404,),
        transaction=False,
    ),
)
