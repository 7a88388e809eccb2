from __future__ import annotations

from sqlalchemy import text

from fastllm_control.repositories import providers
from fastllm_control.services import principals
from fastllm_control.transaction import Database
from fastllm_shared.ids import uuid7
from tests.fakes.configuration import ACTOR, Stock


async def test_found_by_id_and_by_name(database: Database, stock: Stock) -> None:
    identity = await stock.provider("gpu/1")
    async with database.read() as session:
        for reference in ("gpu/1", str(identity), str(identity).upper()):
            found = await providers.find(session, reference)
            assert found is not None
            assert found.id == identity
        assert await providers.find(session, "gpu") is None
        assert await providers.find(session, str(uuid7())) is None
        assert await providers.name_taken(session, "gpu/1")
        assert not await providers.name_taken(session, "gpu")


async def test_pages_are_in_the_order_of_making_and_filtered(database: Database, stock: Stock) -> None:
    ids = [await stock.provider(name) for name in ("c", "a", "b")]
    nothing = {"kind": None, "state": None}
    async with database.read() as session:
        assert [row.id for row in await providers.page(session, 2, None, nothing)] == ids[:2]
        assert [row.id for row in await providers.page(session, 2, ids[1], nothing)] == ids[2:]
        assert await providers.page(session, 2, None, {"kind": "dynamic"}) == []
        assert len(await providers.page(session, 9, None, {"kind": "static", "state": "active"})) == 3


async def test_owners_by_name(database: Database, stock: Stock) -> None:
    owned, _ = await stock.provider("owned"), await stock.provider("free")
    async with database.begin(ACTOR) as tx:
        owner = (await principals.create(tx, "fleet", "service_account")).id
    async with database.engine.begin() as connection:
        await connection.execute(text(f"UPDATE providers SET owner_id = '{owner}' WHERE id = '{owned}'"))
    async with database.read() as session:
        rows = await providers.page(session, 9, None, {})
        assert await providers.owner_names(session, rows) == {owner: "fleet"}
        assert await providers.owner_names(session, []) == {}


async def test_a_deleted_owner_frees_its_providers(database: Database, stock: Stock) -> None:
    owned = await stock.provider("owned")
    async with database.begin(ACTOR) as tx:
        owner = (await principals.create(tx, "fleet", "service_account")).id
    async with database.engine.begin() as connection:
        await connection.execute(text(f"UPDATE providers SET owner_id = '{owner}' WHERE id = '{owned}'"))
        await connection.execute(text(f"DELETE FROM principals WHERE id = '{owner}'"))
    async with database.read() as session:
        found = await providers.find(session, "owned")
        assert found is not None
        assert found.owner_id is None


async def test_what_is_served_there(database: Database, stock: Stock) -> None:
    one, two = await stock.provider("one"), await stock.provider("two")
    for name in ("b", "a"):
        await stock.model(name, "one")
    async with database.read() as session:
        assert await providers.models_served(session, one) == ["a", "b"]
        assert await providers.models_served(session, two) == []
        assert await providers.upstream_models(session, one) == {"a": "a", "b": "b"}
