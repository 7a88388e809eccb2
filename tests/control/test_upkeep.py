"""What is done from time to time, and that a failure of it is survived."""

from __future__ import annotations

import asyncio
import datetime

from fastllm_control.partitions import WEEK, name_of, week_of
from fastllm_control.upkeep import Upkeep
from tests.fakes.log import CapturedLog
from tests.fakes.usage import opened, rows_of, run

LATER = datetime.datetime(2031, 3, 5, 9, 30, tzinfo=datetime.UTC)


async def until_logged(captured: CapturedLog, event: str) -> dict[str, object]:
    for _ in range(1000):
        if found := captured.events(event):
            return found[0]
        await asyncio.sleep(0.01)
    raise AssertionError(f"not logged: {event}; but {captured.entries}")


async def test_a_turn_makes_partitions_and_forgets_replicas_of_last_week(database_url: str) -> None:
    insert = "INSERT INTO replicas (replica, seen_at) VALUES (:name, now() - make_interval(days => :days))"
    async with opened(database_url) as database:
        await run(database, insert, name="old", days=8)
        await run(database, insert, name="recent", days=6)
        upkeep = Upkeep(database, CapturedLog().log, lambda: LATER)
        assert await upkeep.turn() == [name_of(week_of(LATER) + n * WEEK) for n in range(3)]
        assert await upkeep.turn() == []
        assert await rows_of(database, "SELECT replica FROM replicas") == [("recent",)]


async def test_it_turns_at_once_when_it_starts(database_url: str) -> None:
    captured = CapturedLog()
    async with opened(database_url) as database, Upkeep(database, captured.log, lambda: LATER).running():
        logged = await until_logged(captured, "partitions made")
    assert len(logged["names"]) == 3  # type: ignore[arg-type]


async def test_a_database_that_is_away_is_logged_and_tried_again() -> None:
    captured = CapturedLog()
    nobody = "postgresql+asyncpg://user@127.0.0.1:1/nothing"
    async with opened(nobody) as database, Upkeep(database, captured.log, lambda: LATER).running():
        logged = await until_logged(captured, "upkeep failed, tried again later")
    assert "Connect" in str(logged["cause"])


async def test_a_turn_that_fails_in_an_unforeseen_way_is_not_the_last_one(database_url: str) -> None:
    def lost() -> datetime.datetime:
        raise LookupError("no clock")

    captured = CapturedLog()
    async with opened(database_url) as database:
        upkeep = Upkeep(database, captured.log, lost)
        async with upkeep.running():
            logged = await until_logged(captured, "upkeep failed, tried again later")
    assert logged["cause"] == "LookupError: no clock"
