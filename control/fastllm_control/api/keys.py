"""`/admin/keys`: API keys. What proves a caller is shown once, in the answer to its making."""

from __future__ import annotations

import datetime
from typing import Annotated
from uuid import UUID

import msgspec

from fastllm_control.naming import Name, missing, required_id
from fastllm_control.operations import Call, Operation
from fastllm_control.paging import Page, PageQuery, Wanted, page_of
from fastllm_control.repositories import keys as repository
from fastllm_control.repositories import principals
from fastllm_control.services import keys as service
from fastllm_control.services.keys import NewKey
from fastllm_control.tables.access import ApiKey
from fastllm_shared.snapshot import Scope

Expiry = Annotated[datetime.datetime, msgspec.Meta(tz=True)]
Grace = Annotated[int, msgspec.Meta(ge=0, le=90 * 86_400)]


class KeyCreate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`principal_id` takes the name too. Without `expires_at` the key never expires."""

    principal_id: Name
    name: Name
    expires_at: Expiry | None = None
    scope: Scope = "invoke"


class KeyRotate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """For how long the old key works beside the new one; 0 ends it at once."""

    grace_seconds: Grace = 0


class KeyRow(msgspec.Struct, frozen=True):
    id: UUID
    name: str
    principal_id: UUID
    principal: str
    prefix: str
    scope: Scope
    disabled: bool
    expires_at: datetime.datetime | None
    last_used_at: datetime.datetime | None
    created_at: datetime.datetime
    created_by: str | None


class KeyQuery(PageQuery, frozen=True, forbid_unknown_fields=True):
    """`principal` is an id or a name, `prefix` what is shown of a key."""

    principal: Wanted | None = None
    disabled: bool | None = None
    scope: Scope | None = None
    prefix: Wanted | None = None


class Revoked(msgspec.Struct, frozen=True):
    disabled: bool = True


async def index(call: Call) -> Page[KeyRow]:
    query: KeyQuery = call.query
    async with call.services.database.read() as session:
        holder = None if query.principal is None else await principals.find(session, query.principal)
        if query.principal is not None and holder is None:
            return Page(rows=[])
        found = await repository.page(
            session,
            query.limit + 1,
            query.after_id(),
            principal_id=None if holder is None else holder.id,
            disabled=query.disabled,
            scope=query.scope,
            prefix=query.prefix,
        )
    return page_of([_row(row, principal) for row, principal in found], query.limit, lambda row: row.id)


async def show(call: Call) -> KeyRow:
    key_id = required_id(call.path["id"], "key")
    async with call.services.database.read() as session:
        found = await repository.row(session, key_id)
    if found is None:
        raise missing("key", call.path["id"])
    return _row(found[0], found[1])


async def create(call: Call) -> NewKey:
    body: KeyCreate = call.body
    now = call.services.clock()
    return await service.create(call.tx, body.principal_id, body.name, body.scope, body.expires_at, now)


async def rotate(call: Call) -> NewKey:
    body: KeyRotate = call.body
    key_id = required_id(call.path["id"], "key")
    return await service.rotate(call.tx, key_id, body.grace_seconds, call.services.clock())


async def revoke(call: Call) -> Revoked:
    await service.revoke(call.tx, required_id(call.path["id"], "key"), call.services.clock())
    return Revoked()


def _row(row: ApiKey, principal: str) -> KeyRow:
    return KeyRow(
        id=row.id,
        name=row.name,
        principal_id=row.principal_id,
        principal=principal,
        prefix=row.prefix,
        scope="admin" if row.scope == "admin" else "invoke",
        disabled=row.disabled,
        expires_at=row.expires_at,
        last_used_at=row.last_used_at,
        created_at=row.created_at,
        created_by=row.created_by,
    )


ROUTES = (
    Operation(
        method="GET",
        path="/admin/keys",
        requires="config:read",
        summary="List API keys",
        handler=index,
        query=KeyQuery,
        result=Page[KeyRow],
    ),
    Operation(
        method="POST",
        path="/admin/keys",
        requires="key:create",
        summary="Create an API key, which is shown only now",
        handler=create,
        body=KeyCreate,
        result=NewKey,
        status=201,
    ),
    Operation(
        method="GET",
        path="/admin/keys/{id}",
        requires="config:read",
        summary="Show an API key's row",
        handler=show,
        result=KeyRow,
        errors=(404,),
    ),
    Operation(
        method="DELETE",
        path="/admin/keys/{id}",
        requires="key:revoke",
        summary="Revoke an API key for good",
        handler=revoke,
        result=Revoked,
        errors=(404, 409),
    ),
    Operation(
        method="POST",
        path="/admin/keys/{id}/rotate",
        requires="key:create",
        summary="Create a successor of an API key; both work during the grace",
        handler=rotate,
        body=KeyRotate,
        result=NewKey,
        status=201,
        errors=(404, 409),
    ),
)
