"""Pools, below the API."""

from __future__ import annotations

from fastllm_control.forms import NewPool, PoolMemberForm, PoolPatch
from fastllm_control.services import pools
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
