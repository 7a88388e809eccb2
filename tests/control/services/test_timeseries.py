"""Usage over time: every bucket, each figure where it belongs."""

from __future__ import annotations

import datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fastllm_control.repositories.usage_reading import Filters
from fastllm_control.services import timeseries
from fastllm_control.services.timeseries import MAX_POINTS, Series
from fastllm_control.services.usage import REFUSALS
from fastllm_control.transaction import Database
from tests.fakes.usage import NOON, make_event, opened, put, run

HOUR = datetime.timedelta(hours=1)
DAY = datetime.timedelta(days=1)
LATER = NOON + HOUR
NO_REFUSALS: dict[str, int] = dict.fromkeys(REFUSALS, 0)


async def series(database: Database, bucket: int = 3600, **filters: Any) -> Series:
    async with database.read() as session:
        return await timeseries.timeseries(session, Filters(**filters), bucket, LATER)


async def test_a_series_has_every_bucket_and_empty_ones_are_zeros(database_url: str) -> None:
    async with opened(database_url) as database:
        await put(database, make_event((NOON - 3 * HOUR).timestamp()), make_event(NOON.timestamp() + 1))
        found = await series(database, since=NOON - 3 * HOUR, until=NOON + HOUR)
    assert [point.at for point in found.points] == [NOON + n * HOUR for n in (-3, -2, -1, 0)]
    assert [point.requests for point in found.points] == [1, 0, 0, 1]
    empty = found.points[1]
    assert (empty.prompt_tokens, empty.cost_micros, empty.errors, empty.refusals) == (0, 0, 0, NO_REFUSALS)
    assert (empty.p50_ms, empty.p95_ms, empty.rolled_up, empty.refused_unattributed) == (None, None, False, 0)
    full = found.points[0]
    assert (full.cost_micros, full.unpriced_requests, full.p50_ms) == (None, 1, 250.0)
    assert (full.prompt_tokens, full.completion_tokens) == (100, 20)


async def test_a_series_is_of_the_last_day_by_the_hour_unless_said(database_url: str) -> None:
    async with opened(database_url) as database:
        found = await series(database)
    assert found.bucket_seconds == 3600
    assert len(found.points) == 24
    assert found.points[0].at == LATER - DAY


async def test_the_ends_of_a_range_inside_a_bucket_cut_it(database_url: str) -> None:
    quarter = datetime.timedelta(minutes=15)
    async with opened(database_url) as database:
        await put(database, *(make_event((NOON + n * quarter).timestamp()) for n in range(8)))
        found = await series(database, since=NOON + quarter, until=NOON + 6 * quarter)
    assert [(point.at, point.requests) for point in found.points] == [(NOON, 3), (NOON + HOUR, 2)]


async def test_what_was_refused_before_anybody_was_known(database_url: str) -> None:
    async with opened(database_url) as database:
        insert = "INSERT INTO gateway_rejections (minute, replica, reason, key_prefix, count) VALUES"
        for minute, key, count in ((0, "", 3), (5, "", 4), (5, "sk-abcdefgh", 100), (-60, "", 50)):
            await run(
                database,
                f"{insert} (:at, 'r1', :reason, :key, :count)",
                at=NOON + datetime.timedelta(minutes=minute),
                reason=f"reason-{minute}",
                key=key,
                count=count,
            )
        within = await series(database, since=NOON + datetime.timedelta(seconds=30), until=NOON + HOUR)
        of_a_model = await series(database, since=NOON, until=NOON + HOUR, model="assistant")
    assert [point.refused_unattributed for point in within.points] == [7]
    assert [point.refused_unattributed for point in of_a_model.points] == [None]


async def test_a_series_of_one_model_and_of_one_principal(database_url: str) -> None:
    async with opened(database_url) as database:
        await put(database, make_event(model="a"), make_event(model="b"), make_event(principal="team-b"))
        assert sum(point.requests for point in (await series(database, model="a")).points) == 1
        assert sum(point.requests for point in (await series(database, principal="team-b")).points) == 1


INSTANTS = st.integers(0, 4_000_000_000).map(lambda n: datetime.datetime.fromtimestamp(n, datetime.UTC))


@given(since=INSTANTS, width=st.integers(1, 10**9), bucket=st.integers(1, 366 * 86_400))
def test_a_bucket_is_widened_until_720_cover_the_range(
    since: datetime.datetime, width: int, bucket: int
) -> None:
    until = since + datetime.timedelta(seconds=width)
    fitting = timeseries.fitting_bucket(since, until, bucket)
    assert fitting % bucket == 0

    def needed(size: int) -> int:
        return -(-int(until.timestamp()) // size) - int(since.timestamp()) // size

    assert needed(fitting) <= MAX_POINTS
    assert fitting == bucket or needed(bucket) > MAX_POINTS
    assert fitting == bucket or needed(fitting - bucket) > MAX_POINTS - 4
