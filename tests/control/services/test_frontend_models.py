from __future__ import annotations

import pytest

from fastllm_control.errors import Conflict, Invalid, NotFound
from fastllm_control.forms import FrontendModelPatch, NewFrontendModel, Target
from fastllm_control.services import frontend_models
from fastllm_control.transaction import Change, Database
from tests.fakes.configuration import ACTOR, Stock


async def test_one_audit_event_tells_all_that_a_patch_changed(database: Database, stock: Stock) -> None:
    await stock.frontend("assistant", "a")
    patch = FrontendModelPatch(name="helper", policy="cheapest", targets=(Target("b", 2),))
    async with database.begin(ACTOR) as tx:
        await frontend_models.change(tx, "assistant", patch)
        (note,) = tx.notes
    assert (note.action, note.target_name) == ("frontend_model.update", "helper")
    assert note.changes == {
        "name": Change("assistant", "helper"),
        "policy": Change(None, "cheapest"),
        "targets": Change([{"target": "a", "weight": 1}], [{"target": "b", "weight": 2}]),
    }


async def test_the_order_of_targets_is_content(database: Database, stock: Stock) -> None:
    await stock.frontend("assistant", "a", "b")
    for targets, changed in ((("a", "b"), False), (("b", "a"), True)):
        async with database.begin(ACTOR) as tx:
            await frontend_models.set_targets(tx, "assistant", [Target(name) for name in targets])
        assert (tx.version is not None) is changed


async def test_a_repeated_target_is_named_and_nothing_is_changed(database: Database, stock: Stock) -> None:
    await stock.frontend("assistant", "a")
    with pytest.raises(Invalid) as refused:
        async with database.begin(ACTOR) as tx:
            await frontend_models.set_targets(tx, "assistant", [Target("b"), Target("c"), Target("b", 2)])
    assert refused.value.field == "targets[2].target"
    async with database.begin(ACTOR) as tx:
        await frontend_models.set_targets(tx, "assistant", [Target("a")])
    assert tx.version is None


async def test_a_star_would_be_everything(database: Database, stock: Stock) -> None:
    await stock.frontend("assistant")
    async with database.begin(ACTOR) as tx:
        with pytest.raises(Invalid):
            await frontend_models.create(tx, NewFrontendModel(name="*"))
        with pytest.raises(Invalid):
            await frontend_models.change(tx, "assistant", FrontendModelPatch(name="*"))
        with pytest.raises(Conflict):
            await frontend_models.create(tx, NewFrontendModel(name="assistant"))


async def test_what_is_not_there(database: Database) -> None:
    async with database.begin(ACTOR) as tx:
        with pytest.raises(NotFound):
            await frontend_models.change(tx, "nothing", FrontendModelPatch())
        with pytest.raises(NotFound):
            await frontend_models.delete(tx, "nothing")
