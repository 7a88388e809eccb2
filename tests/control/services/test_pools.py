"""Pools, below the API."""

from __future__ import annotations

import pytest

from fastllm_control.errors import Invalid
from fastllm_control.forms import NewPool, PoolMemberForm, PoolPatch, ProviderModelPatch
from fastllm_control.repositories import frontend_models as frontend_rows
from fastllm_control.repositories import pools as pool_rows
from fastllm_control.services import frontend_models, pools, provider_models
from fastllm_control.transaction import Database
from tests.fakes.configuration import ACTOR, Stock


async def test_each_write_is_one_event_that_shows_the_members(database: Database, stock: Stock) -> None:
    await stock.model("qwen")
    async with database.begin(ACTOR) as tx:
        members = (PoolMemberForm(provider_model="qwen", weight=3),)
        await pools.create(tx, NewPool(name="local", members=members))
        await pools.change(tx, "local", PoolPatch(policy="round-robin", members=()))
        await pools.delete(tx, "local")
        notes = tx.notes
    assert [note.action for note in notes] == ["pool.create", "pool.update", "pool.delete"]
    assert notes[1].changes["members"].before == [{"provider_model": "qwen", "weight": 3}]
    assert notes[1].changes["members"].after == []
    assert notes[1].changes["policy"].after == "round-robin"


async def test_a_renamed_thing_takes_the_place_of_a_name_that_led_nowhere(
    database: Database, stock: Stock
) -> None:
    await stock.model("qwen")
    await stock.model("next")
    await stock.frontend("assistant", "next", "qwen", "other")
    members = (PoolMemberForm("next"), PoolMemberForm("qwen", None, 3))
    async with database.begin(ACTOR) as tx:
        row = await pools.create(tx, NewPool(name="local", members=members))
        await provider_models.delete(tx, "next")
        await provider_models.change(tx, "qwen", ProviderModelPatch(name="next"))
        held = (await pool_rows.members_of(tx.session, [row.id]))[row.id]
        assert [(member.provider_model, member.weight) for member in held] == [("next", 3)]
        model = await frontend_models.require(tx.session, "assistant")
        targets = (await frontend_rows.targets_of(tx.session, [model.id]))[model.id]
    assert [target.target for target in targets] == ["next", "other"]


async def test_no_pool_is_a_member_and_no_member_a_pool(database: Database) -> None:
    async with database.begin(ACTOR) as tx:
        await pools.create(tx, NewPool(name="local"))
        with pytest.raises(Invalid, match="is a pool"):
            await pools.change(tx, "local", PoolPatch(members=(PoolMemberForm("local"),)))
