"""`/admin/pools`: balancing policies over existing backends."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from fastllm_control.forms import NewPool, PoolPatch
from fastllm_control.operations import Call, Deleted, Operation
from fastllm_control.paging import Page, PageQuery, Wanted, page_of
from fastllm_control.repositories import pools as repository
from fastllm_control.repositories import provider_models
from fastllm_control.services import pools as service
from fastllm_control.tables.configuration import Pool
from fastllm_shared.snapshot import Policy


class PoolMemberRow(msgspec.Struct, frozen=True):
    """All backends of a provider model (`backend_id` is null), or one backend: then `provider_model`,
    `provider` and `upstream_model` say which. `resolved` tells whether the provider model exists."""

    provider_model: str
    backend_id: UUID | None
    provider: str | None
    upstream_model: str | None
    weight: int
    resolved: bool


class PoolRow(msgspec.Struct, frozen=True):
    id: UUID
    name: str
    policy: Policy
    members: list[PoolMemberRow]
    created_at: datetime.datetime


class PoolQuery(PageQuery, frozen=True, forbid_unknown_fields=True):
    """`member` is a provider model (its name or id) or a backend (its id)."""

    member: Wanted | None = None


async def index(call: Call) -> Page[PoolRow]:
    query: PoolQuery = call.query
    async with call.services.database.read() as session:
        found = await repository.page(session, query.limit + 1, query.after_id(), query.member)
        rows = await _rows(session, found)
    return page_of(rows, query.limit, lambda row: row.id)


async def show(call: Call) -> PoolRow:
    async with call.services.database.read() as session:
        return await _row(session, await service.require(session, call.path["id"]))


async def create(call: Call) -> PoolRow:
    return await _row(call.tx.session, await service.create(call.tx, call.body))


async def update(call: Call) -> PoolRow:
    return await _row(call.tx.session, await service.change(call.tx, call.path["id"], call.body))


async def delete(call: Call) -> Deleted:
    await service.delete(call.tx, call.path["id"])
    return Deleted()


async def _row(session: AsyncSession, row: Pool) -> PoolRow:
    return (await _rows(session, [row]))[0]


async def _rows(session: AsyncSession, found: Sequence[Pool]) -> list[PoolRow]:
    members = await repository.members_of(session, [row.id for row in found])
    listed = [member for several in members.values() for member in several]
    named = sorted({member.provider_model for member in listed if member.provider_model is not None})
    there = await provider_models.existing(session, named)
    one_by_one = [member.backend_id for member in listed if member.backend_id is not None]
    backends = await repository.backends(session, one_by_one)
    rows = []
    for row in found:
        shown = []
        for member in members.get(row.id, ()):
            if member.backend_id is None:
                name = member.provider_model or ""
                shown.append(PoolMemberRow(name, None, None, None, member.weight, name in there))
            elif member.backend_id in backends:
                backend, provider, model = backends[member.backend_id]
                shown.append(
                    PoolMemberRow(model, backend.id, provider, backend.upstream_model, member.weight, True)
                )
        policy = msgspec.convert(row.policy, Policy)
        rows.append(PoolRow(row.id, row.name, policy, shown, row.created_at))
    return rows


ROUTES = (
    Operation(
        method="GET",
        path="/admin/pools",
        requires="config:read",
        summary="List pools with their members",
        handler=index,
        query=PoolQuery,
        result=Page[PoolRow],
    ),
    Operation(
        method="POST",
        path="/admin/pools",
        requires="config:write",
        summary="Create a pool over provider models and backends that exist",
        handler=create,
        body=NewPool,
        result=PoolRow,
        status=201,
        errors=(409,),
    ),
    Operation(
        method="GET",
        path="/admin/pools/{id}",
        requires="config:read",
        summary="Show a pool",
        handler=show,
        result=PoolRow,
        errors=(404,),
    ),
    Operation(
        method="PATCH",
        path="/admin/pools/{id}",
        requires="config:write",
        summary="Change a pool: name (its targets follow), policy, members",
        handler=update,
        body=PoolPatch,
        result=PoolRow,
        errors=(404, 409),
    ),
    Operation(
        method="DELETE",
        path="/admin/pools/{id}",
        requires="config:write",
        summary="Delete a pool; targets that name it stay, unresolved",
        handler=delete,
        result=Deleted,
        errors=(404,),
    ),
)
