"""`/admin/roles`: named sets of permissions."""

from __future__ import annotations

import datetime
from typing import Annotated
from uuid import UUID

import msgspec

from fastllm_control.access import Permission, Verb
from fastllm_control.naming import Name, missing
from fastllm_control.operations import Call, Deleted, Operation
from fastllm_control.paging import Page, PageQuery, Wanted, page_of
from fastllm_control.repositories import roles as repository
from fastllm_control.services import roles as service
from fastllm_control.tables.access import Role


class RoleCreate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Name


class RoleUpdate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Name | msgspec.UnsetType = msgspec.UNSET


class PermissionReference(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`resource` of `model:invoke` is `model/<frontend model>` or `model/*`; of all other verbs it is `*`."""

    verb: Verb
    resource: Annotated[str, msgspec.Meta(min_length=1, max_length=210)] = "*"


class RoleRow(msgspec.Struct, frozen=True):
    id: UUID
    name: str
    built_in: bool
    permissions: list[Permission]
    created_at: datetime.datetime


class RoleQuery(PageQuery, frozen=True, forbid_unknown_fields=True):
    """`name_prefix` is what the name begins with, `principal` (id or name) holds the role, `resource`
    (`model/<name>`) is granted by it."""

    name_prefix: Wanted | None = None
    principal: Wanted | None = None
    resource: Annotated[str, msgspec.Meta(min_length=1, max_length=210)] | None = None


async def index(call: Call) -> Page[RoleRow]:
    query: RoleQuery = call.query
    async with call.services.database.read() as session:
        found = await repository.page(
            session,
            query.limit + 1,
            query.after_id(),
            name_prefix=query.name_prefix,
            principal=query.principal,
            resource=query.resource,
        )
        held = await repository.permissions(session, [row.id for row in found])
    return page_of([_row(row, held[row.id]) for row in found], query.limit, lambda row: row.id)


async def show(call: Call) -> RoleRow:
    async with call.services.database.read() as session:
        row = await repository.find(session, call.path["id"])
        if row is None:
            raise missing("role", call.path["id"])
        held = await repository.permissions(session, [row.id])
    return _row(row, held[row.id])


async def create(call: Call) -> RoleRow:
    body: RoleCreate = call.body
    return _row(await service.create(call.tx, body.name), [])


async def update(call: Call) -> RoleRow:
    body: RoleUpdate = call.body
    if isinstance(body.name, str):
        row = await service.rename(call.tx, call.path["id"], body.name)
    else:
        row = await service.require(call.tx, call.path["id"])
    return _row(row, (await repository.permissions(call.tx.session, [row.id]))[row.id])


async def delete(call: Call) -> Deleted:
    await service.delete(call.tx, call.path["id"], call.services.clock())
    return Deleted()


async def add_permission(call: Call) -> RoleRow:
    row = await service.add_permission(call.tx, call.path["id"], _permission(call.body))
    return _row(row, (await repository.permissions(call.tx.session, [row.id]))[row.id])


async def drop_permission(call: Call) -> RoleRow:
    now = call.services.clock()
    row = await service.drop_permission(call.tx, call.path["id"], _permission(call.body), now)
    return _row(row, (await repository.permissions(call.tx.session, [row.id]))[row.id])


def _permission(body: PermissionReference) -> Permission:
    return Permission(body.verb, body.resource)


def _row(row: Role, permissions: list[Permission]) -> RoleRow:
    return RoleRow(row.id, row.name, row.built_in, permissions, row.created_at)


ROUTES = (
    Operation(
        method="GET",
        path="/admin/roles",
        requires="config:read",
        summary="List roles",
        handler=index,
        query=RoleQuery,
        result=Page[RoleRow],
    ),
    Operation(
        method="POST",
        path="/admin/roles",
        requires="access:write",
        summary="Create a role, which permits nothing yet",
        handler=create,
        body=RoleCreate,
        result=RoleRow,
        status=201,
        errors=(409,),
    ),
    Operation(
        method="GET",
        path="/admin/roles/{id}",
        requires="config:read",
        summary="Show a role",
        handler=show,
        result=RoleRow,
        errors=(404,),
    ),
    Operation(
        method="PATCH",
        path="/admin/roles/{id}",
        requires="access:write",
        summary="Rename a role; whoever holds it keeps it, rules that name it follow",
        handler=update,
        body=RoleUpdate,
        result=RoleRow,
        errors=(404, 409),
    ),
    Operation(
        method="DELETE",
        path="/admin/roles/{id}",
        requires="access:write",
        summary="Delete a role; whoever held it no longer does",
        handler=delete,
        result=Deleted,
        errors=(404, 409),
    ),
    Operation(
        method="POST",
        path="/admin/roles/{id}/permissions",
        requires="access:write",
        summary="Add a permission to a role",
        handler=add_permission,
        body=PermissionReference,
        result=RoleRow,
        status=201,
        errors=(404, 409),
    ),
    Operation(
        method="DELETE",
        path="/admin/roles/{id}/permissions",
        requires="access:write",
        summary="Take a permission from a role",
        handler=drop_permission,
        body=PermissionReference,
        result=RoleRow,
        errors=(404, 409),
    ),
)
