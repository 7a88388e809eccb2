"""Everything that a file can say, read at once."""

from __future__ import annotations

import asyncio

from fastllm_control.repositories import declared
from fastllm_control.services import keys
from fastllm_control.transaction import Database
from tests.fakes.access import Access
from tests.fakes.configuration import ACTOR, Stock


async def test_rows_are_by_name_and_values_by_their_owner(
    database: Database, stock: Stock, access: Access
) -> None:
    await stock.provider("p")
    models = {name: await stock.model(name, "p") for name in ("b", "a")}
    frontend = await stock.frontend("f", "b", "a")
    actor = await access.principal("team", await access.role("readers", ("usage:read", "*")))
    await access.key("team")
    revoked = await access.key("team")
    async with database.begin(ACTOR) as tx:
        await keys.revoke(tx, revoked.id, access.now)
    async with database.read() as session:
        found = await declared.read(session)
        ids = await declared.backend_ids(session)
    assert [row.name for row in found.models] == ["a", "b"]
    assert [target.target for target in found.targets[frontend]] == ["b", "a"]
    assert actor.principal_id is not None
    assert found.held[actor.principal_id] == ["readers"]
    assert found.keys == {actor.principal_id: 1}
    role = next(row for row in found.roles if row.name == "readers")
    assert [held.verb for held in found.permissions[role.id]] == ["usage:read"]
    assert set(ids) == {("p", "a", "a"), ("p", "b", "b")}
    assert {row.provider_model_id for row in found.backends} == set(models.values())


async def test_one_holds_and_the_others_wait(database: Database) -> None:
    entered = asyncio.Event()
    left: list[str] = []

    async def second() -> None:
        async with database.begin(ACTOR) as tx:
            entered.set()
            await declared.hold(tx.session)
            left.append("second")

    async with database.begin(ACTOR) as tx:
        await declared.hold(tx.session)
        waiting = asyncio.create_task(second())
        await entered.wait()
        left.append("first")
    await waiting
    assert left == ["first", "second"]
