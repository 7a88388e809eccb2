from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastllm_proxy.timers import TimerWheel


class Call:
    def __init__(self, when: float, callback: Callable[[], None]) -> None:
        self.when = when
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class SteppedLoop:
    """A loop whose clock stands still until `advance`."""

    def __init__(self, start: float = 0.0) -> None:
        self.clock = start
        self.errors: list[Exception] = []
        self._calls: list[Call] = []

    def time(self) -> float:
        return self.clock

    def call_at(self, when: float, callback: Callable[[], None]) -> Call:
        call = Call(when, callback)
        self._calls.append(call)
        return call

    def call_soon(self, callback: Callable[[], None]) -> Call:
        return self.call_at(self.clock, callback)

    @property
    def waiting(self) -> int:
        return sum(not call.cancelled for call in self._calls)

    def advance(self, to: float, *, held_up: bool = False) -> None:
        """Runs what is due, in order. `held_up`: the clock jumps first, as when a callback blocks."""
        if held_up:
            self.clock = to
        while due := [call for call in self._calls if call.when <= to]:
            call = min(due, key=lambda call: call.when)
            self._calls.remove(call)
            self.clock = max(self.clock, call.when)
            if not call.cancelled:
                try:
                    call.callback()
                except Exception as error:  # noqa: BLE001 - as an event loop does
                    self.errors.append(error)
        self.clock = to


@pytest.fixture
def loop() -> SteppedLoop:
    return SteppedLoop(start=1000.05)


def test_fires_once_and_within_two_ticks(loop: SteppedLoop) -> None:
    fired: list[float] = []
    TimerWheel(loop, 0.1).after(1.0, lambda: fired.append(loop.time()))
    loop.advance(1010)
    assert len(fired) == 1
    assert 1001.05 <= fired[0] <= 1001.25


@given(
    start=st.floats(0, 1e6),
    delays=st.lists(st.floats(0, 30), min_size=1, max_size=20),
    gaps=st.lists(st.floats(0, 0.5), min_size=20, max_size=20),
)
def test_never_early_never_later_than_two_ticks(start: float, delays: list[float], gaps: list[float]) -> None:
    loop = SteppedLoop(start)
    wheel = TimerWheel(loop, 0.1)
    late: list[float] = []
    for delay, gap in zip(delays, gaps, strict=False):
        due = loop.time() + delay
        wheel.after(delay, lambda due=due: late.append(loop.time() - due))  # type: ignore[misc]
        loop.advance(loop.time() + gap)
    loop.advance(loop.time() + 40)
    assert len(late) == len(delays)
    assert min(late) >= -1e-6
    assert max(late) <= 0.2 + 1e-6
    assert loop.waiting == 0


def test_a_cancelled_timer_does_not_fire(loop: SteppedLoop) -> None:
    timer = TimerWheel(loop).after(1.0, pytest.fail)
    before = timer.pending
    timer.cancel()
    timer.cancel()
    assert (before, timer.pending) == (True, False)
    loop.advance(1010)


def test_cancelling_takes_effect_in_the_same_tick(loop: SteppedLoop) -> None:
    wheel = TimerWheel(loop)
    second = wheel.after(5.0, pytest.fail)
    wheel.after(1.0, lambda: other.cancel())
    other = wheel.after(1.0, pytest.fail)
    second.cancel()
    loop.advance(1010)


def test_the_loop_is_left_alone_when_nothing_is_pending(loop: SteppedLoop) -> None:
    wheel = TimerWheel(loop)
    assert loop.waiting == 0
    wheel.after(1.0, lambda: None)
    cancelled = wheel.after(100.0, lambda: None)
    assert loop.waiting == 1
    cancelled.cancel()
    loop.advance(1002)
    assert loop.waiting == 0
    fired: list[float] = []
    loop.advance(5000)
    wheel.after(1.0, lambda: fired.append(loop.time()))
    loop.advance(5002)
    assert len(fired) == 1
    assert 5001 <= fired[0] <= 5001.2


def test_a_loop_that_was_held_up_serves_what_it_missed(loop: SteppedLoop) -> None:
    wheel = TimerWheel(loop)
    fired: list[str] = []
    wheel.after(1.0, lambda: fired.append("one"))
    wheel.after(2.0, lambda: fired.append("two"))
    wheel.after(9.0, lambda: fired.append("nine"))
    loop.advance(1005, held_up=True)
    assert fired == ["one", "two"]
    loop.advance(1010)
    assert fired == ["one", "two", "nine"]


def test_one_that_raises_takes_no_other_with_it(loop: SteppedLoop) -> None:
    wheel = TimerWheel(loop)
    fired: list[str] = []
    wheel.after(1.0, lambda: fired.append(str(1 / 0)))
    wheel.after(1.0, lambda: fired.append("next"))
    wheel.after(2.0, lambda: fired.append("later"))
    loop.advance(1010)
    assert fired == ["next", "later"]
    assert [type(error) for error in loop.errors] == [ZeroDivisionError]


def test_a_callback_may_set_another(loop: SteppedLoop) -> None:
    wheel = TimerWheel(loop)
    fired: list[float] = []

    def again() -> None:
        fired.append(loop.time())
        if len(fired) < 3:
            wheel.after(0.5, again)

    wheel.after(0.5, again)
    loop.advance(1010)
    assert [round(b - a, 1) for a, b in itertools.pairwise(fired)] == [0.6, 0.6]
    assert loop.waiting == 0


def test_now_and_next_follow_the_clock_while_a_timer_is_pending(loop: SteppedLoop) -> None:
    wheel = TimerWheel(loop)
    wheel.after(60.0, lambda: None)
    assert wheel.now <= loop.time() <= wheel.next
    loop.advance(1030.05)
    assert wheel.now <= loop.time() <= wheel.next


def test_close_drops_everything(loop: SteppedLoop) -> None:
    wheel = TimerWheel(loop)
    timer = wheel.after(1.0, pytest.fail)
    wheel.close()
    assert loop.waiting == 0
    assert not timer.pending
    loop.advance(1010)


async def test_on_a_real_loop() -> None:
    loop = asyncio.get_running_loop()
    wheel = TimerWheel(loop, 0.005)
    fired: asyncio.Future[float] = loop.create_future()
    started = loop.time()
    wheel.after(0.02, lambda: fired.set_result(loop.time()))
    assert await asyncio.wait_for(fired, 5) - started >= 0.019
