"""`/admin/providers`: endpoints, and the credentials for reaching them."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from fastllm_control.dial import DialResult
from fastllm_control.errors import Invalid
from fastllm_control.forms import Force, NewProvider, ProviderPatch
from fastllm_control.operations import Call, Deleted, Operation
from fastllm_control.paging import Page, PageQuery, Wanted, page_of
from fastllm_control.repositories import providers as repository
from fastllm_control.secrets import Undecryptable
from fastllm_control.services import providers as service
from fastllm_control.tables.configuration import Provider
from fastllm_shared.snapshot import Protocol, ProviderKind, State, StreamUsage


class ProviderRow(msgspec.Struct, frozen=True, kw_only=True):
    """`state` is what a person wants, `condition` with `reason` what was found. `extra_headers` are names:
    neither their values nor the credential are ever returned."""

    id: UUID
    name: str
    kind: ProviderKind
    api_base: str
    protocol: Protocol
    node: str | None
    engine: str | None
    owner: str | None
    state: State
    state_by: str | None
    state_reason: str | None
    state_at: datetime.datetime
    condition: str
    reason: str | None
    condition_at: datetime.datetime
    lease_expires_at: datetime.datetime | None
    has_credential: bool
    auth_header: str
    auth_scheme: str | None
    extra_headers: list[str] | None
    stream_usage: StreamUsage
    ca: str | None
    server_name: str | None
    drift: Any
    created_at: datetime.datetime


class ProviderQuery(PageQuery, frozen=True, forbid_unknown_fields=True):
    """`owner` is the principal that registered it, by id or name, `name_prefix` what its name begins with."""

    kind: ProviderKind | None = None
    state: State | None = None
    condition: str | None = None
    owner: Wanted | None = None
    name_prefix: Wanted | None = None


class ProbeAnswer(msgspec.Struct, frozen=True):
    """`status` is the provider's own; `models` the ids that it says it serves, `null` without a list."""

    reachable: bool
    status: int | None
    reason: str | None
    models: list[str] | None


class AvailableModel(msgspec.Struct, frozen=True):
    """`provider_model` is what it is registered as here, if it is."""

    id: str
    max_model_len: int | None
    provider_model: str | None


async def index(call: Call) -> Page[ProviderRow]:
    query: ProviderQuery = call.query
    filters = {"kind": query.kind, "state": query.state, "condition": query.condition}
    async with call.services.database.read() as session:
        found = await repository.page(
            session,
            query.limit + 1,
            query.after_id(),
            filters,
            owner=query.owner,
            name_prefix=query.name_prefix,
        )
        rows = await _rows(call, session, found)
    return page_of(rows, query.limit, lambda row: row.id)


async def show(call: Call) -> ProviderRow:
    async with call.services.database.read() as session:
        return await _row(call, session, await service.require(session, call.path["id"]))


async def create(call: Call) -> ProviderRow:
    """Dials before it opens the transaction, since that may take seconds."""
    form: NewProvider = call.body
    if form.kind != "static":
        how = "registers itself, by an agent" if form.kind == "dynamic" else "comes from the catalogue"
        raise Invalid("invalid_value", f"a {form.kind} provider {how}", "kind")
    service.check(form, call.services.dialer.addresses)
    result = await call.services.dialer.dial(service.endpoint_of(form))
    service.refuse_unreachable(result, force=call.query.force)
    async with call.begin() as tx:
        row = await service.create(tx, call.services.secrets, form, result)
        return await _row(call, tx.session, row)


async def update(call: Call) -> ProviderRow:
    patch: ProviderPatch = call.body
    service.check(patch, call.services.dialer.addresses)
    row = await service.change(call.tx, call.services.secrets, call.path["id"], patch)
    return await _row(call, call.tx.session, row)


async def delete(call: Call) -> Deleted:
    await service.delete(call.tx, call.path["id"], force=call.query.force)
    return Deleted()


async def probe(call: Call) -> ProbeAnswer:
    row, result = await _dial(call)
    async with call.begin() as tx:
        await service.note_dial(tx.session, row.id, result)
    models = None if result.models is None else [model.id for model in result.models]
    return ProbeAnswer(result.reachable, result.status, result.reason, models)


async def available_models(call: Call) -> Page[AvailableModel]:
    """Asked of the provider itself. Raises `Invalid` when it does not answer with a list."""
    row, result = await _dial(call)
    if result.models is None:
        message = f"the provider did not say what it serves: {result.reason}"
        raise Invalid("provider_unreachable", message)
    async with call.services.database.read() as session:
        registered = await repository.upstream_models(session, row.id)
    return Page([AvailableModel(m.id, m.max_model_len, registered.get(m.id)) for m in result.models])


async def _dial(call: Call) -> tuple[Provider, DialResult]:
    async with call.services.database.read() as session:
        row = await service.require(session, call.path["id"])
    try:
        endpoint = service.stored_endpoint(row, call.services.secrets)
    except Undecryptable as error:
        return row, service.unreadable(error)
    return row, await call.services.dialer.dial(endpoint)


async def _row(call: Call, session: AsyncSession, row: Provider) -> ProviderRow:
    return (await _rows(call, session, [row]))[0]


async def _rows(call: Call, session: AsyncSession, found: Sequence[Provider]) -> list[ProviderRow]:
    owners = await repository.owner_names(session, found)
    plain = [name for name in ProviderRow.__struct_fields__ if name not in _DERIVED]
    rows = []
    for row in found:
        values = {name: getattr(row, name) for name in plain}
        values["owner"] = None if row.owner_id is None else owners.get(row.owner_id)
        values["has_credential"] = row.credential is not None
        values["extra_headers"] = service.header_names(row, call.services.secrets)
        rows.append(msgspec.convert(values, ProviderRow))
    return rows


_DERIVED = frozenset({"owner", "has_credential", "extra_headers"})

ROUTES = (
    Operation(
        method="GET",
        path="/admin/providers",
        requires="config:read",
        summary="List providers",
        handler=index,
        query=ProviderQuery,
        result=Page[ProviderRow],
    ),
    Operation(
        method="POST",
        path="/admin/providers",
        requires="config:write",
        summary="Add a provider; it is dialled first, and refused when it does not answer",
        handler=create,
        body=NewProvider,
        query=Force,
        result=ProviderRow,
        status=201,
        errors=(409,),
        transaction=False,
    ),
    Operation(
        method="GET",
        path="/admin/providers/{id}",
        requires="config:read",
        summary="Show a provider",
        handler=show,
        result=ProviderRow,
        errors=(404,),
    ),
    Operation(
        method="PATCH",
        path="/admin/providers/{id}",
        requires="config:write",
        summary="Change a provider: name, credential, state, kind, owner, address",
        handler=update,
        body=ProviderPatch,
        result=ProviderRow,
        errors=(404, 409),
    ),
    Operation(
        method="DELETE",
        path="/admin/providers/{id}",
        requires="config:write",
        summary="Delete a provider with its backends; its models, targets, grants and usage stay",
        handler=delete,
        query=Force,
        result=Deleted,
        errors=(404, 409),
    ),
    Operation(
        method="POST",
        path="/admin/providers/{id}/probe",
        requires="config:write",
        summary="Dial a provider now and keep what was found",
        handler=probe,
        result=ProbeAnswer,
        errors=(404,),
        transaction=False,
    ),
    Operation(
        method="GET",
        path="/admin/providers/{id}/available-models",
        requires="config:read",
        summary="Ask a provider which models it serves",
        handler=available_models,
        result=Page[AvailableModel],
        errors=(404,),
    ),
)
