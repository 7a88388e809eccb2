from __future__ import annotations

import asyncio

from sqlalchemy import text

from fastllm_control.repositories import provider_models
from fastllm_control.services import principals
from fastllm_control.transaction import Database
from fastllm_shared.ids import uuid7
from tests.fakes.configuration import ACTOR, Stock


async def test_found_by_id_and_by_name(database: Database, stock: Stock) -> None:
    identity = await stock.model("org/qwen")
    async with database.read() as session:
        for reference in ("org/qwen", str(identity)):
            found = await provider_models.find(session, reference)
            assert found is not None
            assert found.id == identity
        assert await provider_models.find(session, "org") is None


async def test_a_name_is_held_by_a_model_or_a_pool(database: Database, stock: Stock) -> None:
    await stock.model("qwen")
    async with database.engine.begin() as connection:
        await connection.execute(
            text(f"INSERT INTO pools (id, name, policy) VALUES ('{uuid7()}', 'local', 'weighted')")
        )
    async with database.read() as session:
        held = [await provider_models.holder_of_name(session, name) for name in ("qwen", "local", "x")]
        assert held == ["provider model", "pool", None]
        assert await provider_models.resolved(session, ["x", "local", "qwen"]) == {"qwen", "local"}
        assert await provider_models.resolved(session, []) == frozenset()


async def test_writers_of_names_queue(database: Database) -> None:
    async with database.begin(ACTOR) as first:
        await provider_models.lock_target_names(first.session)

        async def second() -> None:
            async with database.begin(ACTOR) as tx:
                await provider_models.lock_target_names(tx.session)

        waiting = asyncio.create_task(second())
        await asyncio.sleep(0.1)
        assert not waiting.done()
    async with asyncio.timeout(5):
        await waiting


async def test_backends_with_their_providers_oldest_first(database: Database, stock: Stock) -> None:
    for name in ("one", "two"):
        await stock.provider(name)
    model, bare = await stock.model("qwen", "two", "one"), await stock.model("bare")
    async with database.read() as session:
        found = await provider_models.backends_of(session, [model, bare])
        assert [provider for _, provider in found[model]] == ["two", "one"]
        assert bare not in found
        backend = found[model][0][0]
        joined = await provider_models.backend(session, backend.id)
        assert joined is not None
        assert (joined[0].id, joined[1].name, joined[2].name) == (backend.id, "two", "qwen")
        assert await provider_models.backend(session, uuid7()) is None
        assert await provider_models.is_served(session, model, backend.provider_id, "qwen")
        assert not await provider_models.is_served(session, model, backend.provider_id, "Qwen")


async def test_pages_by_provider(database: Database, stock: Stock) -> None:
    one = await stock.provider("one")
    ids = [await stock.model("a", "one"), await stock.model("b"), await stock.model("c", "one")]
    async with database.read() as session:
        assert [row.id for row in await provider_models.page(session, 9, None, None)] == ids
        for reference in ("one", str(one)):
            found = await provider_models.page(session, 9, None, reference)
            assert [row.name for row in found] == ["a", "c"]
        assert [row.name for row in await provider_models.page(session, 1, ids[0], "one")] == ["c"]
        assert await provider_models.page(session, 9, None, "nobody") == []


async def test_targets_and_acceptances_follow_a_name(database: Database, stock: Stock) -> None:
    await stock.frontend("assistant", "old", "other")
    async with database.begin(ACTOR) as tx:
        owner = (await principals.create(tx, "fleet", "service_account")).id
        await provider_models.accept(tx.session, owner, "old", "root")
        await provider_models.accept(tx.session, owner, "old", "somebody else")
        await provider_models.move_targets(tx.session, "old", "new")
    async with database.engine.connect() as connection:
        targets = await connection.scalars(text("SELECT target FROM default_targets ORDER BY position"))
        assert targets.all() == ["new", "other"]
        accepted = await connection.execute(
            text("SELECT provider_model, accepted_by FROM acceptances ORDER BY 1")
        )
        assert [tuple(row) for row in accepted] == [("new", "root"), ("old", "root")]
