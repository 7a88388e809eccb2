"""Publishing against a real Postgres: what is heard, what is found out, what is kept when building fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import asyncpg
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from fastllm_control.access import Actor
from fastllm_control.config import DatabaseSettings
from fastllm_control.database import listener_for, open_engine
from fastllm_control.dial import DialResult
from fastllm_control.forms import NewProvider
from fastllm_control.publisher import Publisher, publish
from fastllm_control.secrets import Keyring
from fastllm_control.services import principals, providers
from fastllm_control.snapshot import Built
from fastllm_control.transaction import Database
from fastllm_shared.snapshot import ProviderEntry, Snapshot
from tests.fakes.log import CapturedLog

ACTOR = Actor(name="tests", via="command")
RING = Keyring.parse("ab" * 32)
NEVER = 3600.0


async def add_principal(database: Database, name: str) -> int:
    """Returns the version that it made."""
    async with database.begin(ACTOR) as tx:
        await principals.create(tx, name, "user")
    assert tx.version is not None
    return tx.version


async def add_provider(database: Database, name: str, ring: Keyring = RING) -> int:
    form = NewProvider(name=name, api_base="http://127.0.0.1:9001/v1", upstream_api_key="sk-canary")
    async with database.begin(ACTOR) as tx:
        await providers.create(tx, ring, form, DialResult(True))
    assert tx.version is not None
    return tx.version


@asynccontextmanager
async def running(
    database: Database, url: str, log: CapturedLog | None = None, **options: Any
) -> AsyncIterator[Publisher]:
    given = {"connect": listener_for(DatabaseSettings(database_url=url)), "open_secret": RING.open}
    publisher = Publisher(database, log=(log or CapturedLog()).log, **{**given, **options})
    async with publisher.running(asyncio.Event()):
        yield publisher


async def reaches(publisher: Publisher, version: int) -> Snapshot:
    """What is published once `version` is."""
    async with asyncio.timeout(10):
        found = await publisher.newer_than(version - 1, 10)
    assert found is not None
    assert found.version >= version
    return found.snapshot


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came")


async def until_found(database: Database, query: str, wanted: int = 1) -> None:
    for _ in range(1000):
        if await scalar(database, query) == wanted:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came")


async def scalar(database: Database, query: str) -> Any:
    async with database.engine.connect() as connection:
        return await connection.scalar(text(query))


LISTENERS = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'"
)
END_LISTENERS = (
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
    " WHERE datname = current_database() AND query LIKE 'LISTEN%'"
)


async def test_the_notification_alone_is_enough(database: Database, database_url: str) -> None:
    async with running(database, database_url, check_seconds=NEVER) as publisher:
        await reaches(publisher, 1)
        for number in range(3):
            version = await add_principal(database, f"p{number}")
            snapshot = await reaches(publisher, version)
            assert f"p{number}" in {principal.name for principal in snapshot.principals}


async def test_looking_is_enough_where_nothing_can_be_heard(database: Database, database_url: str) -> None:
    async def refuse() -> asyncpg.Connection[Any]:
        raise OSError("a transaction pooler")

    log = CapturedLog()
    async with running(database, database_url, log, connect=refuse, check_seconds=0.05) as publisher:
        await reaches(publisher, await add_principal(database, "p"))
    assert log.events("not listening for new versions")


async def test_a_listening_connection_that_breaks_is_replaced(database: Database, database_url: str) -> None:
    async with running(database, database_url, check_seconds=NEVER) as publisher:
        await reaches(publisher, 1)
        await until_found(database, LISTENERS)
        assert await scalar(database, END_LISTENERS) == 1
        # Committed while nobody listens: the new connection must ask what it missed.
        await reaches(publisher, await add_principal(database, "meanwhile"))
        await reaches(publisher, await add_principal(database, "afterwards"))


class Unwritable:
    """An engine that reads, and fails at writing in a way that nobody foresaw."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.connect = engine.connect

    def begin(self) -> None:
        raise LookupError("a defect")


async def test_publishing_goes_on_when_its_history_cannot_be_written(
    database: Database, database_url: str
) -> None:
    log = CapturedLog()
    unwritable = Database(cast(AsyncEngine, Unwritable(database.engine)))
    async with running(unwritable, database_url, log, check_seconds=0.05) as publisher:
        for number in range(2):
            await reaches(publisher, await add_principal(database, f"p{number}"))
    assert log.events("version not recorded")[0]["reason"] == "LookupError"


async def test_a_burst_of_writes_is_built_once_or_twice(database: Database, database_url: str) -> None:
    log = CapturedLog()
    async with running(database, database_url, log, check_seconds=NEVER) as publisher:
        await reaches(publisher, 1)
        before = len(log.events("snapshot published"))
        versions = await asyncio.gather(*(add_principal(database, f"p{number}") for number in range(40)))
        assert len(set(versions)) == 40
        snapshot = await reaches(publisher, max(versions))
        assert len(snapshot.principals) == 40
        assert len(log.events("snapshot published")) - before < 40


async def test_when_building_fails_the_last_good_one_stays_and_it_is_tried_again(
    database: Database, database_url: str
) -> None:
    broken = True

    def open_secret(sealed: str, place: Any) -> str:
        if broken:
            raise RuntimeError("no such luck")
        return RING.open(sealed, place)

    log = CapturedLog()
    async with running(
        database, database_url, log, open_secret=open_secret, check_seconds=NEVER
    ) as publisher:
        await reaches(publisher, 1)
        good = publisher.current
        version = await add_provider(database, "gpu-1")
        await until(lambda: publisher.failures >= 2)
        assert publisher.current is good
        assert publisher.last_error == "RuntimeError: no such luck"
        assert len(log.events("snapshot not built")) == 1  # said once, however often it is tried
        broken = False
        snapshot = await reaches(publisher, version)
        assert snapshot.providers[0].credential == "sk-canary"
        await until(lambda: publisher.last_error is None)


async def test_a_credential_that_does_not_open_is_named_and_the_rest_is_served(
    database: Database, database_url: str
) -> None:
    log = CapturedLog()
    async with running(database, database_url, log) as publisher:
        await add_provider(database, "lost", Keyring.parse("cd" * 32))
        version = await add_provider(database, "kept")
        snapshot = await reaches(publisher, version)
        assert [provider.name for provider in snapshot.providers] == ["kept"]
        assert publisher.failures == 0
        assert publisher.current is not None
        assert [dropped.name for dropped in publisher.current.dropped] == ["lost"]
        await until(lambda: bool(log.events("left out of the snapshot")))
        assert log.events("left out of the snapshot")[-1]["name"] == "lost"


async def test_a_database_that_is_away_is_no_failed_build() -> None:
    settings = DatabaseSettings(database_url="postgresql://nobody@127.0.0.1:1/none")
    engine = open_engine(settings)
    log = CapturedLog()
    async with running(Database(engine), settings.database_url, log) as publisher:
        assert await publisher.newer_than(0, 0.3) is None
        assert publisher.failures == 0
        assert publisher.last_error is not None
        assert len(log.events("database not reached, the last snapshot stays")) == 1
        assert not log.events("snapshot not built")  # which would print a traceback
    await engine.dispose()


async def test_every_version_is_written_down_once_by_however_many(
    database: Database, database_url: str
) -> None:
    async with running(database, database_url) as one, running(database, database_url) as two:
        versions = [await add_principal(database, f"p{number}") for number in range(5)]
        first, second = await reaches(one, versions[-1]), await reaches(two, versions[-1])
        assert first == second
        assert one.current is not None
        assert two.current is not None
        assert one.current.wire == two.current.wire
        written = f"SELECT count(*) FROM published_snapshots WHERE version = {versions[-1]}"
        await until_found(database, written)
        digest = f"SELECT hash FROM published_snapshots WHERE version = {versions[-1]}"
        assert await scalar(database, digest) == one.current.hash


async def test_a_version_that_could_not_be_written_down_is_so_later(
    database: Database, database_url: str
) -> None:
    log = CapturedLog()
    async with running(database, database_url, log, check_seconds=0.02) as publisher:
        async with database.engine.begin() as connection:
            await connection.execute(text("ALTER TABLE published_snapshots RENAME TO elsewhere"))
        version = await add_principal(database, "p")
        await reaches(publisher, version)
        await until(lambda: bool(log.events("version not recorded")))
        assert publisher.failures == 0
        async with database.engine.begin() as connection:
            await connection.execute(text("ALTER TABLE elsewhere RENAME TO published_snapshots"))
        await until_found(database, f"SELECT count(*) FROM published_snapshots WHERE version = {version}")


async def test_waiting_ends_by_itself_and_by_closing(database: Database, database_url: str) -> None:
    async with running(database, database_url) as publisher:
        snapshot = await reaches(publisher, 1)
        assert await publisher.newer_than(snapshot.version, 0) is None
        assert await publisher.newer_than(snapshot.version, 0.05) is None
        waiting = asyncio.create_task(publisher.newer_than(snapshot.version, 60))
        await asyncio.sleep(0)
        publisher.close()
        async with asyncio.timeout(5):
            assert await waiting is None
            assert await publisher.newer_than(snapshot.version, 60) is None
            assert await publisher.newer_than(0, 60) is publisher.current


async def test_stopping_leaves_no_connection(database: Database, database_url: str) -> None:
    async with running(database, database_url) as publisher:
        await reaches(publisher, 1)
    await until_found(database, LISTENERS, wanted=0)


def test_only_credentials_and_extra_headers_count_as_secrets() -> None:
    bare = ProviderEntry("1", "gpu", "static", "http://gpu/v1")
    keyed = ProviderEntry("1", "gpu", "static", "http://gpu/v1", credential="sk")
    headed = ProviderEntry("1", "gpu", "static", "http://gpu/v1", extra_headers=(("x", "y"),))
    cases = ((), (bare,), (bare, keyed), (headed,))
    found = [publish(Built(Snapshot(1, "h", 0.0, providers=held))).has_credentials for held in cases]
    assert found == [False, False, True, True]
