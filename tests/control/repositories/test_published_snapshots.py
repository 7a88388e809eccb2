"""The history of versions in a real database."""

from __future__ import annotations

from sqlalchemy import text

from fastllm_control.repositories import published_snapshots
from fastllm_control.transaction import Database, Transaction
from tests.fakes.configuration import ACTOR


async def commit(database: Database, *actions: str) -> int:
    """A version made by audit events of those actions."""

    def note(tx: Transaction) -> None:
        for action in actions:
            tx.audit(action, "test")
        tx.content_changed()

    async with database.begin(ACTOR) as tx:
        note(tx)
    assert tx.version is not None
    return tx.version


async def record(database: Database, version: int, digest: bytes = b"\x01") -> None:
    async with database.engine.begin() as connection:
        await published_snapshots.record(connection, version, digest)


async def listed(
    database: Database, limit: int = 10, after: int | None = None
) -> list[tuple[int, list[str]]]:
    async with database.read() as session:
        found = await published_snapshots.page(session, limit, after)
    return [(row.version, [event.action for event in row.events]) for row in found]


async def test_a_version_carries_the_events_since_the_one_before(database: Database) -> None:
    first, skipped, last = [await commit(database, name) for name in ("a", "b", "c")]
    await record(database, first)
    await record(database, last)
    assert await listed(database) == [(last, ["b", "c"]), (first, ["a"])]
    assert skipped not in {version for version, _ in await listed(database)}


async def test_events_of_one_commit_stay_together_and_in_order(database: Database) -> None:
    version = await commit(database, "one", "two", "three")
    await record(database, version)
    assert await listed(database) == [(version, ["one", "two", "three"])]


async def test_writing_down_twice_changes_nothing(database: Database) -> None:
    version = await commit(database, "a")
    await record(database, version, b"\x01")
    await record(database, version, b"\x02")
    async with database.read() as session:
        (row,) = await published_snapshots.page(session, 10, None)
    assert row.hash == "01"


async def test_a_version_without_events_is_listed_too(database: Database) -> None:
    version = await commit(database)
    await record(database, version)
    assert await listed(database) == [(version, [])]


async def test_pages_go_back_in_time(database: Database) -> None:
    versions = [await commit(database, str(number)) for number in range(4)]
    for version in versions:
        await record(database, version)
    assert [version for version, _ in await listed(database, 2)] == versions[:1:-1]
    assert [version for version, _ in await listed(database, 2, versions[2])] == versions[1::-1]


async def test_old_ones_are_forgotten_but_never_the_newest(database: Database) -> None:
    versions = [await commit(database, str(number)) for number in range(3)]
    for version in versions[:2]:
        await record(database, version)
    async with database.engine.begin() as connection:
        await connection.execute(text("UPDATE published_snapshots SET at = now() - interval '8 days'"))
    await record(database, versions[1])
    assert [version for version, _ in await listed(database)] == [versions[1]]
    await record(database, versions[2])
    assert [version for version, _ in await listed(database)] == [versions[2]]
