"""One commit for rows, audit events, version and notification; and none of them without the others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from fastllm_control.access import Actor
from fastllm_control.config import DatabaseSettings
from fastllm_control.database import listener_for
from fastllm_control.tables.access import Role
from fastllm_control.transaction import CHANNEL, Change, Database, Transaction
from fastllm_shared.ids import uuid7
from tests.fakes.database import blocked

ADA = Actor(name="ada", via="session", principal_id=uuid7(), request_id="r-1", address="203.0.113.7")


async def add_role(tx: Transaction, name: str, *, content: bool = True) -> None:
    row = Role(id=uuid7(), name=name, built_in=False)
    tx.session.add(row)
    tx.audit("role.create", "role", row.id, name, {"name": Change(None, name)})
    if content:
        tx.content_changed()


async def rows(database: Database, query: str) -> list[Any]:
    async with database.read() as session:
        return list(await session.execute(text(query)))


async def version(database: Database) -> int:
    ((found,),) = await rows(database, "SELECT version FROM config")
    return int(found)


async def test_everything_is_in_one_commit(database: Database) -> None:
    before = await version(database)
    async with database.begin(ADA) as tx:
        await add_role(tx, "a")
        tx.audit("role.note", "role")
        assert await rows(database, "SELECT 1 FROM audit_events") == []
    assert tx.version == await version(database) > before
    noted = await rows(
        database, "SELECT actor_id, actor, via, request_id, address, version FROM audit_events"
    )
    assert noted == [(ADA.principal_id, "ada", "session", "r-1", "203.0.113.7", tx.version)] * 2
    about = await rows(
        database, "SELECT action, target_kind, target_name, changes FROM audit_events ORDER BY id"
    )
    assert about == [
        ("role.create", "role", "a", {"name": {"before": None, "after": "a"}}),
        ("role.note", "role", None, {}),
    ]


async def test_without_change_of_content_there_is_no_version(database: Database) -> None:
    before = await version(database)
    async with database.begin(ADA) as tx:
        await add_role(tx, "a", content=False)
    async with database.begin(ADA) as nothing:
        pass
    assert (tx.version, nothing.version, await version(database)) == (None, None, before)
    assert await rows(database, "SELECT actor, version FROM audit_events") == [("ada", None)]


@pytest.mark.parametrize(
    "error", [ValueError("refused"), asyncio.CancelledError()], ids=["raised", "cancelled"]
)
async def test_what_fails_leaves_nothing(database: Database, error: BaseException) -> None:
    async def fail() -> None:
        async with database.begin(ADA) as tx:
            await add_role(tx, "a")
            await tx.session.flush()
            raise error

    before = await version(database)
    with pytest.raises(type(error)):
        await fail()
    assert await version(database) == before
    assert await rows(database, "SELECT 1 FROM audit_events") == []
    assert await rows(database, "SELECT 1 FROM roles WHERE name = 'a'") == []


async def test_a_row_that_the_database_refuses_at_the_end_takes_the_audit_with_it(database: Database) -> None:
    with pytest.raises(DBAPIError):
        async with database.begin(ADA) as tx:
            await add_role(tx, "viewer")  # a seeded name, refused only by the flush of the commit
    assert await rows(database, "SELECT 1 FROM audit_events") == []


async def test_a_writer_that_is_cancelled_while_it_waits_leaves_nothing(database: Database) -> None:
    async def write() -> None:
        async with database.begin(ADA) as tx:
            await add_role(tx, "late")

    async with database.begin(ADA) as holder:
        await holder.session.execute(text("SELECT 1 FROM config FOR UPDATE"))
        waiting = asyncio.create_task(write())
        await blocked(database)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert await rows(database, "SELECT 1 FROM roles WHERE name = 'late'") == []
    await write()


async def test_versions_rise_in_the_order_of_commits(database: Database, database_url: str) -> None:
    """A reader must never see a version and later find a lower one committed: fifty writers, one listener."""
    heard: list[int] = []
    all_heard = asyncio.Event()

    def hear(*event: Any) -> None:
        heard.append(int(event[3]))
        if len(heard) == 50:
            all_heard.set()

    connect = listener_for(DatabaseSettings(database_url=database_url))
    listener = await connect()
    try:
        await listener.add_listener(CHANNEL, hear)

        async def write(number: int) -> int | None:
            async with database.begin(ADA) as tx:
                await add_role(tx, f"role-{number}")
            return tx.version

        made = await asyncio.gather(*(write(number) for number in range(50)))
        async with asyncio.timeout(10):
            await all_heard.wait()
    finally:
        await listener.close()
    # Postgres delivers notifications in the order of commits.
    assert heard == sorted(set(heard))
    assert set(heard) == set(made)
    audited = await rows(database, "SELECT version FROM audit_events")
    assert sorted(row.version for row in audited) == heard
    assert await version(database) == heard[-1]


async def test_audit_ids_rise_in_the_order_of_commits_with_and_without_a_version(database: Database) -> None:
    """A reader that goes on from the last id it saw must miss none: no lower id may be committed later."""
    seen: list[int] = []
    done = asyncio.Event()

    async def read_on() -> None:
        while not done.is_set():
            found = await rows(database, "SELECT id FROM audit_events ORDER BY id")
            assert [row.id for row in found[: len(seen)]] == seen
            seen[:] = [row.id for row in found]

    async def write(number: int) -> None:
        async with database.begin(ADA) as tx:
            await add_role(tx, f"role-{number}", content=number % 2 == 0)

    reading = asyncio.create_task(read_on())
    await asyncio.gather(*(write(number) for number in range(40)))
    done.set()
    await reading
    versions = await rows(database, "SELECT version FROM audit_events WHERE version > 0 ORDER BY id")
    assert len(versions) == 20
    assert versions == sorted(versions)


async def test_a_version_moves_forward_from_a_restored_backup(database: Database) -> None:
    ahead = await version(database) + 10**12
    async with database.begin(ADA) as tx:
        await tx.session.execute(text("UPDATE config SET version = :ahead"), {"ahead": ahead})
    async with database.begin(ADA) as tx:
        await add_role(tx, "a")
    assert tx.version == ahead + 1
    async with database.begin(ADA) as tx:
        await tx.session.execute(text("UPDATE config SET version = 7"))
    async with database.begin(ADA) as tx:
        await add_role(tx, "b")
    ((now,),) = await rows(database, "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
    assert tx.version is not None
    assert now - 60 * 10**6 < tx.version <= now


async def test_a_read_sees_one_moment_and_cannot_write(database: Database) -> None:
    async with database.read() as session:
        before = (await session.execute(text("SELECT version FROM config"))).scalar_one()
        async with database.begin(ADA) as tx:
            await add_role(tx, "a")
        again = (await session.execute(text("SELECT version FROM config"))).scalar_one()
        assert before == again != tx.version
        with pytest.raises(DBAPIError, match="read-only"):
            await session.execute(text("UPDATE config SET version = 1"))
    # The connection goes back to the pool as it was: writes work on it again.
    for number in range(12):
        async with database.begin(ADA) as tx:
            await add_role(tx, f"again-{number}")
