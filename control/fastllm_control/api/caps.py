"""Limits and budgets of principals."""

from __future__ import annotations

import datetime
from typing import Annotated
from uuid import UUID

import msgspec

from fastllm_control.naming import missing
from fastllm_control.operations import Call, Deleted, Operation
from fastllm_control.paging import Page, PageQuery, page_of
from fastllm_control.repositories import caps as repository
from fastllm_control.repositories import principals
from fastllm_control.services import caps as service
from fastllm_control.tables.access import Budget, Limit
from fastllm_control.windows import Window
from fastllm_shared.snapshot import LimitsEntry

Count = Annotated[int, msgspec.Meta(ge=1, le=10**15)]
Concurrency = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
Moment = Annotated[datetime.datetime, msgspec.Meta(tz=True)]


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Absent and `null` are unlimited."""

    requests_per_min: Count | None = None
    tokens_per_min: Count | None = None
    max_concurrent: Concurrency | None = None


class LimitRow(msgspec.Struct, frozen=True):
    principal_id: UUID
    principal: str
    requests_per_min: int | None
    tokens_per_min: int | None
    max_concurrent: int | None


class BudgetPut(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """At least one cap. Calendar windows in `timezone`, or rolling ones from `starts_at`."""

    window: Window
    tokens_total: Count | None = None
    cost_total_micros: Count | None = None
    timezone: Annotated[str, msgspec.Meta(min_length=1, max_length=64)] = "UTC"
    starts_at: Moment | None = None


class BudgetView(msgspec.Struct, frozen=True, kw_only=True):
    """`percent` is of the cap that is closest to its limit."""

    tokens_total: int | None
    cost_total_micros: int | None
    window: Window
    timezone: str
    starts_at: datetime.datetime | None
    tokens_used: int
    cost_used_micros: int
    window_start: datetime.datetime
    window_end: datetime.datetime
    percent: float


class BudgetRow(BudgetView, frozen=True, kw_only=True):
    principal_id: UUID
    principal: str


async def limits_index(call: Call) -> Page[LimitRow]:
    query: PageQuery = call.query
    async with call.services.database.read() as session:
        found = await repository.limits_page(session, query.limit + 1, query.after_id())
    rows = [LimitRow(row.principal_id, name, *_limits(row)) for row, name in found]
    return page_of(rows, query.limit, lambda row: row.principal_id)


async def limits_show(call: Call) -> Limits:
    async with call.services.database.read() as session:
        holder = await principals.find(session, call.path["id"])
        if holder is None:
            raise missing("principal", call.path["id"])
        return Limits(*_limits(await repository.limit_of(session, holder.id)))


async def limits_put(call: Call) -> Limits:
    body: Limits = call.body
    wanted = LimitsEntry(body.requests_per_min, body.tokens_per_min, body.max_concurrent)
    await service.set_limits(call.tx, call.path["id"], wanted)
    return body


async def budgets_index(call: Call) -> Page[BudgetRow]:
    query: PageQuery = call.query
    async with call.services.database.read() as session:
        found = await repository.budgets_page(session, query.limit + 1, query.after_id())
    rows = [
        BudgetRow(principal_id=row.principal_id, principal=name, **msgspec.structs.asdict(_view(row)))
        for row, name in found
    ]
    return page_of(rows, query.limit, lambda row: row.principal_id)


async def budget_show(call: Call) -> BudgetView:
    async with call.services.database.read() as session:
        holder = await principals.find(session, call.path["id"])
        if holder is None:
            raise missing("principal", call.path["id"])
        row = await repository.budget_of(session, holder.id)
    if row is None:
        raise missing("budget", call.path["id"])
    return _view(row)


async def budget_put(call: Call) -> BudgetView:
    body: BudgetPut = call.body
    wanted = service.BudgetTerms(
        body.tokens_total, body.cost_total_micros, body.window, body.timezone, body.starts_at
    )
    return _view(await service.set_budget(call.tx, call.path["id"], wanted, call.services.clock()))


async def budget_delete(call: Call) -> Deleted:
    await service.drop_budget(call.tx, call.path["id"])
    return Deleted()


async def budget_reset(call: Call) -> BudgetView:
    return _view(await service.reset_budget(call.tx, call.path["id"]))


def _limits(row: Limit | None) -> tuple[int | None, int | None, int | None]:
    return (
        (None, None, None) if row is None else (row.requests_per_min, row.tokens_per_min, row.max_concurrent)
    )


def _view(row: Budget) -> BudgetView:
    shares = [
        used * 100 / cap
        for used, cap in (
            (row.tokens_used, row.tokens_total),
            (row.cost_used_micros, row.cost_total_micros),
        )
        if cap
    ]
    window: Window = msgspec.convert(row.window, Window)
    return BudgetView(
        tokens_total=row.tokens_total,
        cost_total_micros=row.cost_total_micros,
        window=window,
        timezone=row.timezone,
        starts_at=row.starts_at,
        tokens_used=row.tokens_used,
        cost_used_micros=row.cost_used_micros,
        window_start=row.window_start,
        window_end=row.window_end,
        percent=round(max(shares, default=0.0), 2),
    )


ROUTES = (
    Operation(
        method="GET",
        path="/admin/limits",
        requires="config:read",
        summary="List the limits of principals that have any",
        handler=limits_index,
        query=PageQuery,
        result=Page[LimitRow],
    ),
    Operation(
        method="GET",
        path="/admin/principals/{id}/limits",
        requires="config:read",
        summary="Show a principal's limits",
        handler=limits_show,
        result=Limits,
        errors=(404,),
    ),
    Operation(
        method="PUT",
        path="/admin/principals/{id}/limits",
        requires="access:write",
        summary="Replace a principal's limits",
        handler=limits_put,
        body=Limits,
        result=Limits,
        errors=(404,),
    ),
    Operation(
        method="GET",
        path="/admin/budgets",
        requires="config:read",
        summary="List budgets with what is used of them",
        handler=budgets_index,
        query=PageQuery,
        result=Page[BudgetRow],
    ),
    Operation(
        method="GET",
        path="/admin/principals/{id}/budget",
        requires="config:read",
        summary="Show a principal's budget",
        handler=budget_show,
        result=BudgetView,
        errors=(404,),
    ),
    Operation(
        method="PUT",
        path="/admin/principals/{id}/budget",
        requires="access:write",
        summary="Replace a principal's caps and window; what was used stays used",
        handler=budget_put,
        body=BudgetPut,
        result=BudgetView,
        errors=(404,),
    ),
    Operation(
        method="DELETE",
        path="/admin/principals/{id}/budget",
        requires="access:write",
        summary="Remove a principal's budget",
        handler=budget_delete,
        result=Deleted,
        errors=(404,),
    ),
    Operation(
        method="POST",
        path="/admin/principals/{id}/budget/reset",
        requires="access:write",
        summary="Set what was used of a budget to 0",
        handler=budget_reset,
        result=BudgetView,
        errors=(404,),
    ),
)
