from __future__ import annotations

from sqlalchemy import text

from fastllm_control.repositories import fallback
from fastllm_control.transaction import Database
from tests.fakes.configuration import ACTOR


async def test_written_read_and_removed(database: Database) -> None:
    async with database.begin(ACTOR) as tx:
        assert await fallback.read(tx.session) is None
        for name in ("one", "org/two", None, None, "three"):
            await fallback.write(tx.session, name)
            assert await fallback.read(tx.session) == name


async def test_what_is_no_name_reads_as_none(database: Database) -> None:
    async with database.begin(ACTOR) as tx:
        await tx.session.execute(text("INSERT INTO settings (name, value) VALUES ('fallback_model', '7')"))
        assert await fallback.read(tx.session) is None
