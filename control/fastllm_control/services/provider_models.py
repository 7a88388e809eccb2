"""Provider models and backends: what requests are routed to."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from fastllm_control.errors import Conflict, Invalid
from fastllm_control.forms import (
    BackendPatch,
    BackendSettings,
    NewBackend,
    NewProviderModel,
    ProviderModelPatch,
)
from fastllm_control.naming import missing, refuse_uuid
from fastllm_control.repositories import provider_models, providers
from fastllm_control.services.changes import apply, change_state, created, given
from fastllm_control.tables.configuration import Backend, Provider, ProviderModel
from fastllm_control.transaction import Change, Transaction
from fastllm_shared.ids import uuid7

_MODEL_FIELDS = (
    "context_length",
    "input_price_per_mtok",
    "output_price_per_mtok",
    "cached_input_price_per_mtok",
)
SETTINGS = tuple(name for name in BackendSettings.__struct_fields__ if name not in ("state", "state_reason"))
_AUDITED = ("upstream_model", "state", *SETTINGS)
_NOT_CONTENT = frozenset({"state_reason"})


async def require(session: AsyncSession, reference: str, *, lock: bool = False) -> ProviderModel:
    """By id or name; raises `NotFound`."""
    row = await provider_models.find(session, reference, lock=lock)
    if row is None:
        raise missing("provider model", reference)
    return row


async def require_backend(
    session: AsyncSession, backend_id: UUID, *, lock: bool = False
) -> tuple[Backend, Provider, ProviderModel]:
    """With its provider and provider model; raises `NotFound`."""
    found = await provider_models.backend(session, backend_id, lock=lock)
    if found is None:
        raise missing("backend", str(backend_id))
    return found


async def create(tx: Transaction, form: NewProviderModel) -> ProviderModel:
    """A provider model with its first backends; raises `Invalid` naming the backend that cannot be."""
    await _refuse_taken(tx, form.name)
    row = ProviderModel(
        id=uuid7(),
        name=form.name,
        context_length_set=form.context_length is not None,
        **{name: getattr(form, name) for name in _MODEL_FIELDS},
    )
    tx.session.add(row)
    await tx.session.flush()
    await tx.session.refresh(row)
    changes = created(row, _MODEL_FIELDS)
    added = await _make_backends(tx, row, form.backends, "backends")
    if added:
        changes["backends"] = Change(None, [_described(backend, provider) for backend, provider in added])
    tx.audit("provider_model.create", "provider_model", row.id, row.name, changes)
    tx.content_changed()
    return row


async def change(tx: Transaction, reference: str, patch: ProviderModelPatch) -> ProviderModel:
    """Change what `patch` gives; a new name takes the targets along that name the model."""
    row = await require(tx.session, reference, lock=True)
    values = given(patch)
    before = row.name
    if values.get("name", before) != before:
        await _refuse_taken(tx, values["name"])
    changes = apply(row, values)
    if "context_length" in values:
        row.context_length_set = row.context_length is not None
    if row.name != before:
        await provider_models.move_targets(tx.session, before, row.name)
    if changes:
        row.updated_at = datetime.datetime.now(datetime.UTC)
        tx.audit("provider_model.update", "provider_model", row.id, row.name, changes)
        tx.content_changed()
    return row


async def delete(tx: Transaction, reference: str) -> ProviderModel:
    """Remove a model with its backends; targets that name it stay, unresolved."""
    row = await require(tx.session, reference, lock=True)
    served = (await provider_models.backends_of(tx.session, [row.id])).get(row.id, ())
    changes = {"backends": Change([provider for _, provider in served], None)} if served else {}
    tx.audit("provider_model.delete", "provider_model", row.id, row.name, changes)
    tx.content_changed()
    await tx.session.delete(row)
    return row


async def add_backends(
    tx: Transaction, model: ProviderModel, forms: Sequence[NewBackend], field: str | None = None
) -> list[tuple[Backend, Provider]]:
    """Backends for a model. `field` is where they stand in the body, for refusals to name."""
    added = await _make_backends(tx, model, forms, field)
    for row, provider in added:
        changes = created(row, _AUDITED)
        tx.audit("backend.create", "backend", row.id, f"{provider.name}/{model.name}", changes)
        tx.content_changed()
    return added


async def _make_backends(
    tx: Transaction, model: ProviderModel, forms: Sequence[NewBackend], field: str | None
) -> list[tuple[Backend, Provider]]:
    added = []
    for index, form in enumerate(forms):
        where = "" if field is None else f"{field}[{index}]."
        provider = await providers.find(tx.session, form.provider)
        if provider is None:
            raise Invalid("provider_not_found", f"there is no provider {form.provider!r}", f"{where}provider")
        if await provider_models.is_served(tx.session, model.id, provider.id, form.upstream_model):
            message = f"{provider.name} serves this model as {form.upstream_model!r} already"
            raise Conflict("already_exists", message, f"{where}upstream_model")
        added.append((await _make_backend(tx, model, provider, form), provider))
    return added


async def change_backend(
    tx: Transaction, backend_id: UUID, patch: BackendPatch
) -> tuple[Backend, Provider, ProviderModel]:
    """Change what `patch` gives."""
    row, provider, model = await require_backend(tx.session, backend_id, lock=True)
    values = given(patch)
    renamed = values.get("upstream_model", row.upstream_model)
    if renamed != row.upstream_model and await provider_models.is_served(
        tx.session, model.id, provider.id, renamed
    ):
        message = f"{provider.name} serves this model as {renamed!r} already"
        raise Conflict("already_exists", message, "upstream_model")
    changes = apply(row, {name: values[name] for name in ("upstream_model", *SETTINGS) if name in values})
    changes |= change_state(tx.actor, row, values)
    if "accept" in values:
        changes |= await _accept(tx, row, provider, model)
    if changes:
        row.updated_at = datetime.datetime.now(datetime.UTC)
        tx.audit("backend.update", "backend", row.id, f"{provider.name}/{model.name}", changes)
    if changes.keys() - _NOT_CONTENT:
        tx.content_changed()
    return row, provider, model


async def delete_backend(tx: Transaction, backend_id: UUID) -> Backend:
    """Take a backend from its model."""
    row, provider, model = await require_backend(tx.session, backend_id, lock=True)
    changes = {"upstream_model": Change(row.upstream_model, None)}
    tx.audit("backend.delete", "backend", row.id, f"{provider.name}/{model.name}", changes)
    tx.content_changed()
    await tx.session.delete(row)
    return row


async def _make_backend(
    tx: Transaction, model: ProviderModel, provider: Provider, form: NewBackend
) -> Backend:
    values = given(form)
    row = Backend(
        id=uuid7(),
        provider_id=provider.id,
        provider_model_id=model.id,
        upstream_model=form.upstream_model,
        state="active",
        **{name: values[name] for name in SETTINGS if name in values},
    )
    change_state(tx.actor, row, values)
    tx.session.add(row)
    await tx.session.flush()
    await tx.session.refresh(row)
    return row


def _described(row: Backend, provider: Provider) -> dict[str, object]:
    fields = {name: change.after for name, change in created(row, _AUDITED).items()}
    return {"id": str(row.id), "provider": provider.name, **fields}


async def _accept(
    tx: Transaction, row: Backend, provider: Provider, model: ProviderModel
) -> dict[str, Change]:
    if row.condition != "pending":
        return {}
    if provider.owner_id is not None:
        await provider_models.accept(tx.session, provider.owner_id, model.name, tx.actor.name)
    row.condition_at = datetime.datetime.now(datetime.UTC)
    return apply(row, {"condition": "ok", "reason": None})


async def _refuse_taken(tx: Transaction, name: str) -> None:
    refuse_uuid(name)
    await provider_models.lock_target_names(tx.session)
    holder = await provider_models.holder_of_name(tx.session, name)
    if holder is not None:
        raise Conflict("already_exists", f"a {holder} is called {name!r} already", "name")
