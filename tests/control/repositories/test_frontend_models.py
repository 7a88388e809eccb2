from __future__ import annotations

from typing import Any

from sqlalchemy import text

from fastllm_control.forms import Target
from fastllm_control.repositories import frontend_models
from fastllm_control.transaction import Database
from fastllm_shared.ids import uuid7
from tests.fakes.configuration import ACTOR, Stock


async def rows(database: Database, query: str) -> list[tuple[Any, ...]]:
    async with database.engine.connect() as connection:
        return [tuple(row) for row in await connection.execute(text(query))]


async def test_found_by_id_and_by_name(database: Database, stock: Stock) -> None:
    identity = await stock.frontend("org/assistant")
    async with database.read() as session:
        for reference in ("org/assistant", str(identity)):
            found = await frontend_models.find(session, reference)
            assert found is not None
            assert found.id == identity
        assert await frontend_models.find(session, "org") is None
        assert await frontend_models.name_taken(session, "org/assistant")
        assert not await frontend_models.name_taken(session, "org")


async def test_targets_keep_their_order_and_are_replaced(database: Database, stock: Stock) -> None:
    one, two = await stock.frontend("one", "c", "a", "b"), await stock.frontend("two")
    async with database.begin(ACTOR) as tx:
        found = await frontend_models.targets_of(tx.session, [one, two])
        assert [target.target for target in found[one]] == ["c", "a", "b"]
        assert two not in found
        await frontend_models.replace_targets(tx.session, one, [Target("b", 2), Target("d")])
        found = await frontend_models.targets_of(tx.session, [one])
        assert found[one] == [Target("b", 2), Target("d", 1)]
        await frontend_models.replace_targets(tx.session, one, [])
        assert await frontend_models.targets_of(tx.session, [one]) == {}


async def test_pages_by_target(database: Database, stock: Stock) -> None:
    ids = [await stock.frontend("a", "q"), await stock.frontend("b"), await stock.frontend("c", "x", "q")]
    async with database.read() as session:
        assert [row.id for row in await frontend_models.page(session, 2, ids[0], None)] == ids[1:]
        assert [row.name for row in await frontend_models.page(session, 9, None, "q")] == ["a", "c"]


async def test_grants_follow_a_name_and_meet_those_that_are_there(database: Database) -> None:
    one, two = uuid7(), uuid7()
    async with database.begin(ACTOR) as tx:
        for statement in (
            f"INSERT INTO roles (id, name) VALUES ('{one}', 'one'), ('{two}', 'two')",
            "INSERT INTO role_permissions (role_id, verb, resource) VALUES"
            f" ('{one}', 'model:invoke', 'model/old'), ('{one}', 'model:invoke', 'model/old/er'),"
            f" ('{two}', 'model:invoke', 'model/old'), ('{two}', 'model:invoke', 'model/new')",
        ):
            await tx.session.execute(text(statement))
        await frontend_models.move_grants(tx.session, "old", "new")
    held = await rows(
        database,
        "SELECT r.name, p.resource FROM role_permissions p JOIN roles r ON r.id = p.role_id"
        " WHERE NOT r.built_in ORDER BY 1, 2",
    )
    assert held == [("one", "model/new"), ("one", "model/old/er"), ("two", "model/new")]


async def test_the_fallback_follows_only_its_own_model(database: Database) -> None:
    for setting, after in (('"old"', "new"), ('"other"', "other"), ("null", None)):
        async with database.begin(ACTOR) as tx:
            await tx.session.execute(text("DELETE FROM settings"))
            await tx.session.execute(
                text(f"INSERT INTO settings (name, value) VALUES ('fallback_model', '{setting}')")
            )
            await frontend_models.move_references(tx.session, "old", "new")
        assert await rows(database, "SELECT value FROM settings") == [(after,)]
