"""`/admin/provider-models` and `/admin/backends`: what requests are routed to."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from fastllm_control.forms import BackendPatch, NewBackend, NewProviderModel, ProviderModelPatch
from fastllm_control.naming import required_id
from fastllm_control.operations import Call, Deleted, Operation
from fastllm_control.paging import Page, PageQuery, Wanted, page_of
from fastllm_control.repositories import provider_models as repository
from fastllm_control.services import provider_models as service
from fastllm_control.tables.configuration import Backend, ProviderModel
from fastllm_shared.snapshot import State


class ModelBackend(msgspec.Struct, frozen=True):
    """A backend as its model's row shows it; `reason` says why the condition is not `ok`."""

    id: UUID
    provider: str
    upstream_model: str
    state: State
    condition: str
    reason: str | None


class ProviderModelRow(msgspec.Struct, frozen=True, kw_only=True):
    """Prices are micro-units per million tokens, `null` where none is set."""

    id: UUID
    name: str
    context_length: int | None
    input_price_per_mtok: int | None
    output_price_per_mtok: int | None
    cached_input_price_per_mtok: int | None
    backends: list[ModelBackend]
    created_at: datetime.datetime


class BackendDetail(msgspec.Struct, frozen=True, kw_only=True):
    """A backend with all its settings; `null` is the deployment's value."""

    id: UUID
    provider: str
    provider_model: str
    upstream_model: str
    state: State
    state_by: str | None
    state_reason: str | None
    state_at: datetime.datetime
    condition: str
    reason: str | None
    condition_at: datetime.datetime
    upstream_timeout_seconds: float | None
    response_timeout_seconds: float | None
    health_timeout_seconds: float | None
    unhealthy_after: int | None
    consecutive_timeout_threshold: int | None
    admission_max_concurrent: int | None
    admission_high_water: int | None
    admission_max_queued: int | None
    admission_max_wait_seconds: float | None
    learned: bool
    created_at: datetime.datetime


class ProviderModelQuery(PageQuery, frozen=True, forbid_unknown_fields=True):
    """`provider` is the id or name of one that serves the model."""

    provider: Wanted | None = None
    name_prefix: Wanted | None = None


async def index(call: Call) -> Page[ProviderModelRow]:
    query: ProviderModelQuery = call.query
    async with call.services.database.read() as session:
        found = await repository.page(
            session, query.limit + 1, query.after_id(), query.provider, query.name_prefix
        )
        rows = await _rows(session, found)
    return page_of(rows, query.limit, lambda row: row.id)


async def show(call: Call) -> ProviderModelRow:
    async with call.services.database.read() as session:
        return await _row(session, await service.require(session, call.path["id"]))


async def create(call: Call) -> ProviderModelRow:
    return await _row(call.tx.session, await service.create(call.tx, call.body))


async def update(call: Call) -> ProviderModelRow:
    return await _row(call.tx.session, await service.change(call.tx, call.path["id"], call.body))


async def delete(call: Call) -> Deleted:
    await service.delete(call.tx, call.path["id"])
    return Deleted()


async def list_backends(call: Call) -> Page[BackendDetail]:
    query: PageQuery = call.query
    async with call.services.database.read() as session:
        model = await service.require(session, call.path["id"])
        found = await repository.backend_page(session, query.limit + 1, query.after_id(), model.id)
    rows = [_detail(backend, provider, model.name) for backend, provider in found]
    return page_of(rows, query.limit, lambda row: row.id)


async def add_backend(call: Call) -> BackendDetail:
    model = await service.require(call.tx.session, call.path["id"], lock=True)
    ((backend, provider),) = await service.add_backends(call.tx, model, [call.body])
    return _detail(backend, provider.name, model.name)


async def show_backend(call: Call) -> BackendDetail:
    async with call.services.database.read() as session:
        backend, provider, model = await service.require_backend(session, _backend_id(call))
    return _detail(backend, provider.name, model.name)


async def update_backend(call: Call) -> BackendDetail:
    backend, provider, model = await service.change_backend(call.tx, _backend_id(call), call.body)
    return _detail(backend, provider.name, model.name)


async def delete_backend(call: Call) -> Deleted:
    await service.delete_backend(call.tx, _backend_id(call))
    return Deleted()


def _backend_id(call: Call) -> UUID:
    return required_id(call.path["id"], "backend")


async def _row(session: AsyncSession, row: ProviderModel) -> ProviderModelRow:
    return (await _rows(session, [row]))[0]


async def _rows(session: AsyncSession, found: Sequence[ProviderModel]) -> list[ProviderModelRow]:
    backends = await repository.backends_of(session, [row.id for row in found])
    plain = [name for name in ProviderModelRow.__struct_fields__ if name != "backends"]
    rows = []
    for row in found:
        values = {name: getattr(row, name) for name in plain}
        served = [_backend(backend, provider) for backend, provider in backends.get(row.id, ())]
        rows.append(ProviderModelRow(**values, backends=served))
    return rows


def _backend(row: Backend, provider: str) -> ModelBackend:
    values = {name: getattr(row, name) for name in ModelBackend.__struct_fields__ if name != "provider"}
    return msgspec.convert({**values, "provider": provider}, ModelBackend)


def _detail(row: Backend, provider: str, model: str) -> BackendDetail:
    joined = {"provider": provider, "provider_model": model}
    plain = [name for name in BackendDetail.__struct_fields__ if name not in joined]
    return msgspec.convert({name: getattr(row, name) for name in plain} | joined, BackendDetail)


ROUTES = (
    Operation(
        method="GET",
        path="/admin/provider-models",
        requires="config:read",
        summary="List provider models with their backends",
        handler=index,
        query=ProviderModelQuery,
        result=Page[ProviderModelRow],
    ),
    Operation(
        method="POST",
        path="/admin/provider-models",
        requires="config:write",
        summary="Create a provider model with its first backends",
        handler=create,
        body=NewProviderModel,
        result=ProviderModelRow,
        status=201,
        errors=(409,),
    ),
    Operation(
        method="GET",
        path="/admin/provider-models/{id}",
        requires="config:read",
        summary="Show a provider model with its backends",
        handler=show,
        result=ProviderModelRow,
        errors=(404,),
    ),
    Operation(
        method="PATCH",
        path="/admin/provider-models/{id}",
        requires="config:write",
        summary="Change a provider model: name (targets follow), context length, prices",
        handler=update,
        body=ProviderModelPatch,
        result=ProviderModelRow,
        errors=(404, 409),
    ),
    Operation(
        method="DELETE",
        path="/admin/provider-models/{id}",
        requires="config:write",
        summary="Delete a provider model with its backends; targets that name it stay, unresolved",
        handler=delete,
        result=Deleted,
        errors=(404,),
    ),
    Operation(
        method="GET",
        path="/admin/provider-models/{id}/backends",
        requires="config:read",
        summary="List a provider model's backends with all their settings",
        handler=list_backends,
        query=PageQuery,
        result=Page[BackendDetail],
        errors=(404,),
    ),
    Operation(
        method="POST",
        path="/admin/provider-models/{id}/backends",
        requires="config:write",
        summary="Add a backend to a provider model",
        handler=add_backend,
        body=NewBackend,
        result=BackendDetail,
        status=201,
        errors=(404, 409),
    ),
    Operation(
        method="GET",
        path="/admin/backends/{id}",
        requires="config:read",
        summary="Show a backend with all its settings",
        handler=show_backend,
        result=BackendDetail,
        errors=(404,),
    ),
    Operation(
        method="PATCH",
        path="/admin/backends/{id}",
        requires="config:write",
        summary="Change a backend: timeouts, thresholds, flow control, state; accept a pending one",
        handler=update_backend,
        body=BackendPatch,
        result=BackendDetail,
        errors=(404, 409),
    ),
    Operation(
        method="DELETE",
        path="/admin/backends/{id}",
        requires="config:write",
        summary="Take a backend from its provider model",
        handler=delete_backend,
        result=Deleted,
        errors=(404,),
    ),
)
