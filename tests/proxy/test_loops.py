from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from fastllm_proxy.loops import Supervisor
from tests.fakes.log import CapturedLog


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def supervisor(clock: Clock, captured: CapturedLog) -> AsyncIterator[Supervisor]:
    built = Supervisor(captured.log, clock)
    yield built
    await built.stop()


async def turned(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - the loops under test signal nothing
            await asyncio.sleep(0)


def counting(pause: float | None = 0.0) -> tuple[list[int], Callable[[], Awaitable[float | None]]]:
    turns: list[int] = []

    async def turn() -> float | None:
        turns.append(1)
        return pause

    return turns, turn


async def test_a_loop_turns_and_says_when(supervisor: Supervisor, clock: Clock) -> None:
    turns, turn = counting()
    supervisor.add("poll", turn, interval_seconds=5)
    assert supervisor.views()["poll"].last_turn_at is None
    supervisor.start()
    await turned(lambda: len(turns) >= 3)
    view = supervisor.views()["poll"]
    assert (view.last_turn_at, view.interval_seconds, view.failures) == (clock.now, 5, 0)


async def test_one_that_raises_is_told_once_counted_and_goes_on(
    supervisor: Supervisor, captured: CapturedLog
) -> None:
    calls = 0

    async def turn() -> float:
        nonlocal calls
        calls += 1
        if calls in (1, 2):
            raise ValueError("bad luck")
        return 0.0

    supervisor.add("probe", turn, interval_seconds=0.001)
    supervisor.start()
    await turned(lambda: calls >= 4)
    (told,) = captured.events("loop failed")
    assert told["loop"] == "probe"
    assert isinstance(told["exc_info"], ValueError)
    assert supervisor.views()["probe"].failures == 2


async def test_one_that_only_raises_is_overdue(supervisor: Supervisor, clock: Clock) -> None:
    async def turn() -> float:
        raise OSError("always")

    supervisor.add("probe", turn, interval_seconds=0.001)
    supervisor.start()
    await turned(lambda: supervisor.views()["probe"].failures >= 3)
    assert supervisor.views()["probe"].last_turn_at is None
    clock.now += 1
    assert supervisor.overdue() == ("probe",)


async def test_overdue_after_three_intervals_and_one_turn(supervisor: Supervisor, clock: Clock) -> None:
    stuck = asyncio.Event()

    async def turn() -> float:
        await stuck.wait()
        return 1000.0

    supervisor.add("stuck", turn, interval_seconds=10, turn_seconds=5)
    supervisor.start()
    clock.now += 35
    assert supervisor.overdue() == ()
    clock.now += 1
    assert supervisor.overdue() == ("stuck",)
    stuck.set()
    await turned(lambda: supervisor.views()["stuck"].last_turn_at is not None)
    assert supervisor.overdue() == ()


async def test_a_turn_can_be_had_before_its_time(supervisor: Supervisor) -> None:
    turns, turn = counting(pause=None)
    supervisor.add("report", turn, interval_seconds=3600)
    supervisor.start()
    await turned(lambda: len(turns) == 1)
    supervisor.soon("report")
    await turned(lambda: len(turns) == 2)


async def test_stopping_ends_what_is_under_way(supervisor: Supervisor) -> None:
    ended = False

    async def turn() -> float:
        nonlocal ended
        try:
            await asyncio.Event().wait()
        finally:
            ended = True
        return 0.0

    supervisor.add("long", turn, interval_seconds=1)
    supervisor.start()
    await asyncio.sleep(0)
    await supervisor.stop()
    await supervisor.stop()
    assert ended


async def test_one_loop_does_not_hold_up_another(supervisor: Supervisor) -> None:
    async def stuck() -> float:
        await asyncio.Event().wait()
        return 0.0

    turns, turn = counting()
    supervisor.add("stuck", stuck, interval_seconds=1)
    supervisor.add("free", turn, interval_seconds=1)
    supervisor.start()
    await turned(lambda: len(turns) >= 5)
