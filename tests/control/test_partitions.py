"""Weekly partitions: where ids fall, and making partitions while the default one holds strays."""

from __future__ import annotations

import asyncio
import datetime
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, IntegrityError

from fastllm_control.partitions import WEEK, ensure, lowest_id, name_of, week_of
from fastllm_control.transaction import Database
from fastllm_shared.ids import uuid7
from fastllm_shared.usage import UsageAck, UsageEvent
from tests.fakes.usage import PROXY, make_event, opened, put, rows_of

LATER = datetime.datetime(2031, 3, 5, 9, 30, tzinfo=datetime.UTC)
INSTANTS = st.integers(4 * 86_400_000, 250_000_000_000_000).map(
    lambda millis: datetime.datetime.fromtimestamp(millis // 1000, datetime.UTC)
)


async def made(database: Database, now: datetime.datetime, patience_seconds: float = 10.0) -> list[str]:
    async with database.begin(PROXY) as tx:
        return await ensure(tx.session, now, patience_seconds)


async def homes(database: Database) -> list[str]:
    found = await rows_of(database, "SELECT tableoid::regclass::text FROM usage_events ORDER BY id")
    return [row[0] for row in found]


@given(at=INSTANTS)
def test_an_id_lies_in_its_week(at: datetime.datetime) -> None:
    monday = week_of(at)
    assert monday.weekday() == 0
    assert monday <= at < monday + WEEK
    minted = uuid7(lambda: int(at.timestamp() * 1e9))
    assert UUID(lowest_id(monday)) <= minted < UUID(lowest_id(monday + WEEK))


def test_no_id_is_older_than_time_itself() -> None:
    assert lowest_id(datetime.datetime(1066, 10, 14, tzinfo=datetime.UTC)) == str(UUID(int=0))


async def test_the_migration_made_this_week_and_the_next(database_url: str) -> None:
    now = datetime.datetime.now(datetime.UTC)
    async with opened(database_url) as database:
        await put(database, make_event(now.timestamp()), make_event((now + WEEK).timestamp()))
        assert await homes(database) == [name_of(week_of(now)), name_of(week_of(now + WEEK))]


async def test_weeks_are_made_ahead_once(database_url: str) -> None:
    names = [name_of(week_of(LATER) + n * WEEK) for n in range(3)]
    assert names[0] == "usage_events_20310303"
    async with opened(database_url) as database:
        assert await made(database, LATER) == names
        assert await made(database, LATER) == []
        assert await made(database, LATER + WEEK) == [name_of(week_of(LATER) + 3 * WEEK)]


async def test_strays_are_moved_out_of_the_default_partition(database_url: str) -> None:
    events = [make_event(LATER.timestamp() + n) for n in range(3)]
    elsewhere = make_event(1.0)
    async with opened(database_url) as database:
        await put(database, elsewhere, *events)
        assert await homes(database) == ["usage_events_default"] * 4
        await made(database, LATER)
        assert await homes(database) == ["usage_events_default", *["usage_events_20310303"] * 3]
        assert (await put(database, *events, elsewhere)).stored == 0


async def test_a_made_partition_has_the_indexes_of_the_whole(database_url: str) -> None:
    query = (
        "SELECT count(*)::int FROM pg_inherits i JOIN pg_index x ON x.indexrelid = i.inhrelid"
        " WHERE x.indrelid = CAST(:name AS regclass)"
    )
    async with opened(database_url) as database:
        [name, *_] = await made(database, LATER)
        assert await rows_of(database, query, name=name) == [(4,)]
        assert await rows_of(database, query, name=name_of(week_of(datetime.datetime.now(datetime.UTC)))) == [
            (4,)
        ]


async def test_several_control_planes_at_once_make_each_week_once(database_url: str) -> None:
    async with opened(database_url) as database:
        found = await asyncio.gather(*(made(database, LATER) for _ in range(5)))
    assert sorted(len(names) for names in found) == [0, 0, 0, 0, 3]


async def put_as_proxies_do(database: Database, event: UsageEvent) -> UsageAck:
    """What was on its way into the default partition when a week was taken out of it is refused by Postgres,
    whole, and not acknowledged: the proxy sends it again."""
    try:
        return await put(database, event)
    except IntegrityError as error:
        assert "violates partition constraint" in str(error)  # noqa: PT017 - the one thing that may go wrong
        return await put(database, event)


async def test_inserts_go_on_while_weeks_are_made(database_url: str) -> None:
    async with opened(database_url) as database:
        inserts = [put_as_proxies_do(database, make_event(LATER.timestamp() + n)) for n in range(30)]
        answers, *_ = await asyncio.gather(asyncio.gather(*inserts), made(database, LATER))
        assert sum(answer.stored for answer in answers) == 30
        assert len(await homes(database)) == 30


async def test_it_gives_up_rather_than_hold_up_everybody(database_url: str) -> None:
    async with opened(database_url) as database, database.begin(PROXY) as reader:
        await reader.session.execute(text("SELECT 1 FROM usage_events_default"))
        with pytest.raises(DBAPIError, match="lock timeout"):
            await made(database, LATER, patience_seconds=0.1)
        assert (
            len(await rows_of(database, "SELECT 1 FROM pg_class WHERE relname = 'usage_events_20310303'"))
            == 0
        )


async def test_a_range_of_time_reads_its_own_partitions_only(database_url: str) -> None:
    async with opened(database_url) as database:
        await made(database, LATER)
        low, high = lowest_id(LATER), lowest_id(LATER + WEEK)
        plan = await rows_of(
            database, f"EXPLAIN SELECT * FROM usage_events WHERE id >= '{low}' AND id < '{high}'"
        )
    text_of_plan = "\n".join(row[0] for row in plan)
    assert "usage_events_20310303" in text_of_plan
    assert "usage_events_20310310" in text_of_plan
    assert "usage_events_20310317" not in text_of_plan
