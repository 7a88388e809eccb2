"""`/admin/frontend-models`: what clients ask for."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Annotated
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from fastllm_control.forms import FrontendModelPatch, NewFrontendModel, Target, TargetList
from fastllm_control.operations import Call, Deleted, Operation
from fastllm_control.paging import Page, PageQuery, Wanted, page_of
from fastllm_control.repositories import frontend_models as repository
from fastllm_control.repositories import provider_models, rules
from fastllm_control.services import frontend_models as service
from fastllm_control.tables.configuration import FrontendModel
from fastllm_shared.snapshot import Policy


class TargetRow(msgspec.Struct, frozen=True):
    """`resolved` tells whether a provider model or pool of that name exists."""

    target: str
    weight: int
    resolved: bool


class FrontendModelRow(msgspec.Struct, frozen=True):
    """`targets` are where it goes when none of its rules decides."""

    id: UUID
    name: str
    policy: Policy | None
    retry_on_timeout: bool
    targets: list[TargetRow]
    rule_count: int
    created_at: datetime.datetime


class FrontendModelQuery(PageQuery, frozen=True, forbid_unknown_fields=True):
    """`target` is among its targets, the default ones or those of a rule."""

    target: Wanted | None = None
    name_prefix: Wanted | None = None


async def index(call: Call) -> Page[FrontendModelRow]:
    query: FrontendModelQuery = call.query
    async with call.services.database.read() as session:
        found = await repository.page(
            session, query.limit + 1, query.after_id(), query.target, query.name_prefix
        )
        rows = await _rows(session, found)
    return page_of(rows, query.limit, lambda row: row.id)


async def show(call: Call) -> FrontendModelRow:
    async with call.services.database.read() as session:
        return await _row(session, await service.require(session, call.path["id"]))


async def create(call: Call) -> FrontendModelRow:
    return await _row(call.tx.session, await service.create(call.tx, call.body))


async def update(call: Call) -> FrontendModelRow:
    return await _row(call.tx.session, await service.change(call.tx, call.path["id"], call.body))


async def delete(call: Call) -> Deleted:
    await service.delete(call.tx, call.path["id"])
    return Deleted()


async def list_targets(call: Call) -> Page[TargetRow]:
    query: PageQuery = call.query
    found = list(enumerate((await show(call)).targets))
    if (after := query.after_number()) is not None:
        found = found[after + 1 :]
    page = page_of(found, query.limit, lambda row: row[0])
    return Page([target for _, target in page.rows], page.next)


async def set_targets(call: Call) -> FrontendModelRow:
    body: TargetList | tuple[Target, ...] = call.body
    targets = body.targets if isinstance(body, TargetList) else body
    return await _row(call.tx.session, await service.set_targets(call.tx, call.path["id"], targets))


async def _row(session: AsyncSession, row: FrontendModel) -> FrontendModelRow:
    return (await _rows(session, [row]))[0]


async def _rows(session: AsyncSession, found: Sequence[FrontendModel]) -> list[FrontendModelRow]:
    targets = await repository.targets_of(session, [row.id for row in found])
    named = {entry.target for entries in targets.values() for entry in entries}
    resolved = await provider_models.resolved(session, sorted(named))
    counts = await rules.counts(session, [row.id for row in found])
    rows = []
    for row in found:
        shown = [TargetRow(t.target, t.weight, t.target in resolved) for t in targets.get(row.id, ())]
        policy = msgspec.convert(row.policy, Policy | None)
        rows.append(
            FrontendModelRow(
                id=row.id,
                name=row.name,
                policy=policy,
                retry_on_timeout=row.retry_on_timeout,
                targets=shown,
                rule_count=counts.get(row.id, 0),
                created_at=row.created_at,
            )
        )
    return rows


ROUTES = (
    Operation(
        method="GET",
        path="/admin/frontend-models",
        requires="config:read",
        summary="List frontend models with their default targets",
        handler=index,
        query=FrontendModelQuery,
        result=Page[FrontendModelRow],
    ),
    Operation(
        method="POST",
        path="/admin/frontend-models",
        requires="config:write",
        summary="Create a frontend model with its default targets",
        handler=create,
        body=NewFrontendModel,
        result=FrontendModelRow,
        status=201,
        errors=(409,),
    ),
    Operation(
        method="GET",
        path="/admin/frontend-models/{id}",
        requires="config:read",
        summary="Show a frontend model",
        handler=show,
        result=FrontendModelRow,
        errors=(404,),
    ),
    Operation(
        method="PATCH",
        path="/admin/frontend-models/{id}",
        requires="config:write",
        summary="Change a frontend model: name (its grants follow), policy, targets",
        handler=update,
        body=FrontendModelPatch,
        result=FrontendModelRow,
        errors=(404, 409),
    ),
    Operation(
        method="DELETE",
        path="/admin/frontend-models/{id}",
        requires="config:write",
        summary="Delete a frontend model with its rules",
        handler=delete,
        result=Deleted,
        errors=(404,),
    ),
    Operation(
        method="GET",
        path="/admin/frontend-models/{id}/targets",
        requires="config:read",
        summary="List a frontend model's default targets",
        handler=list_targets,
        query=PageQuery,
        result=Page[TargetRow],
        errors=(404,),
    ),
    Operation(
        method="PUT",
        path="/admin/frontend-models/{id}/targets",
        requires="config:write",
        summary="Replace a frontend model's default targets: this extends what its callers reach",
        handler=set_targets,
        body=TargetList | Annotated[tuple[Target, ...], msgspec.Meta(max_length=1000)],
        result=FrontendModelRow,
        errors=(404,),
    ),
)
