"""SQL of keys."""

from __future__ import annotations

import asyncio

from fastllm_control.repositories import keys
from fastllm_control.services import keys as service
from fastllm_control.transaction import Database
from fastllm_shared.ids import uuid7
from tests.fakes.access import COMMAND, Access
from tests.fakes.database import blocked


async def test_a_found_key_is_locked_against_another_change(access: Access, database: Database) -> None:
    await access.principal("ada")
    made = await access.key("ada")

    async def revoke() -> int | None:
        async with database.begin(COMMAND) as tx:
            await service.revoke(tx, made.id, access.now)
        return tx.version

    async with database.begin(COMMAND) as tx:
        row = await keys.find(tx.session, made.id)
        assert row is not None
        row.disabled = True
        waiting = asyncio.create_task(revoke())
        await blocked(database)
    assert await waiting is None  # it saw what was committed meanwhile
    async with database.begin(COMMAND) as tx:
        assert await keys.find(tx.session, uuid7()) is None


async def test_rows_and_pages(access: Access, database: Database) -> None:
    ada, _ = await access.principal("ada"), await access.principal("bob")
    made = [(await access.key(name)).id for name in ("ada", "bob", "ada", "ada")]
    async with database.begin(COMMAND) as tx:
        await service.revoke(tx, made[2], access.now)
    async with database.read() as session:
        row = await keys.row(session, made[1])
        assert row is not None
        assert (row[0].id, row[1]) == (made[1], "bob")
        assert await keys.row(session, uuid7()) is None

        async def ids(**wanted: object) -> list[object]:
            chosen = {"after": None, "limit": 10, **wanted}
            return [key.id for key, _ in await keys.page(session, **chosen)]  # type: ignore[arg-type]

        assert await ids() == made
        assert await ids(limit=2) == made[:2]
        assert await ids(after=made[1]) == made[2:]
        assert await ids(principal_id=ada.principal_id) == [made[0], *made[2:]]
        assert await ids(principal_id=ada.principal_id, disabled=False) == [made[0], made[3]]
        assert await ids(disabled=True) == [made[2]]
