from __future__ import annotations

from uuid import UUID

import pytest

from fastllm_control.errors import Conflict, Invalid, NotFound
from fastllm_control.forms import BackendPatch, NewBackend, NewProviderModel, ProviderModelPatch
from fastllm_control.repositories import provider_models as repository
from fastllm_control.services import provider_models
from fastllm_control.transaction import Database, Transaction
from fastllm_shared.ids import uuid7
from tests.fakes.configuration import ACTOR, Stock


async def only_backend(tx: Transaction, model: UUID) -> UUID:
    found = await repository.backends_of(tx.session, [model])
    ((backend, _),) = found[model]
    return backend.id


async def test_a_context_length_that_an_operator_set_is_marked(database: Database) -> None:
    """Discovery must leave it alone."""
    marks = []
    async with database.begin(ACTOR) as tx:
        for given in (None, 8192):
            row = await provider_models.create(tx, NewProviderModel(name=f"m-{given}", context_length=given))
            marks.append(row.context_length_set)
        changed = await provider_models.change(tx, "m-None", ProviderModelPatch(context_length=4096))
        marks.append(changed.context_length_set)
        changed = await provider_models.change(tx, "m-None", ProviderModelPatch(name="renamed"))
        marks.append(changed.context_length_set)
        changed = await provider_models.change(tx, "renamed", ProviderModelPatch(context_length=None))
        marks.append(changed.context_length_set)
    assert marks == [False, True, True, True, False]


async def test_the_place_of_a_bad_backend_is_named(database: Database, stock: Stock) -> None:
    await stock.provider("gpu-1")
    good, bad = (
        NewBackend(provider="gpu-1", upstream_model="x"),
        NewBackend(provider="no", upstream_model="x"),
    )
    async with database.begin(ACTOR) as tx:
        model = await provider_models.create(tx, NewProviderModel(name="m"))
        for field, expected in (("backends", "backends[1].provider"), (None, "provider")):
            with pytest.raises(Invalid) as refused:
                await provider_models.add_backends(tx, model, [good, bad] if field else [bad], field)
            assert refused.value.field == expected


async def test_one_provider_may_serve_a_model_under_two_names(database: Database, stock: Stock) -> None:
    await stock.provider("gpu-1")
    names = [NewBackend(provider="gpu-1", upstream_model=name) for name in ("x", "y")]
    async with database.begin(ACTOR) as tx:
        model = await provider_models.create(tx, NewProviderModel(name="m"))
        assert len(await provider_models.add_backends(tx, model, names)) == 2
        with pytest.raises(Conflict):
            await provider_models.add_backends(tx, model, names[:1])


async def test_a_reason_alone_is_no_content(database: Database, stock: Stock) -> None:
    await stock.provider("gpu-1")
    model = await stock.model("m", "gpu-1")
    async with database.begin(ACTOR) as tx:
        backend = await only_backend(tx, model)
        await provider_models.change_backend(tx, backend, BackendPatch(state_reason="why"))
        assert [note.action for note in tx.notes] == ["backend.update"]
        assert tx.notes[0].target_name == "gpu-1/m"
    assert tx.version is None


async def test_accepting_what_is_not_pending_changes_nothing(database: Database, stock: Stock) -> None:
    await stock.provider("gpu-1")
    model = await stock.model("m", "gpu-1")
    async with database.begin(ACTOR) as tx:
        backend = await only_backend(tx, model)
        await provider_models.change_backend(tx, backend, BackendPatch(accept=True))
        assert tx.notes == []
    assert tx.version is None


async def test_what_is_not_there(database: Database) -> None:
    async with database.begin(ACTOR) as tx:
        with pytest.raises(NotFound):
            await provider_models.require(tx.session, "nothing")
        with pytest.raises(NotFound):
            await provider_models.change_backend(tx, uuid7(), BackendPatch())
        with pytest.raises(NotFound):
            await provider_models.delete_backend(tx, uuid7())
