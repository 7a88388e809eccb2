"""How many retries are made, at one time and within a second."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastllm_proxy.retries import MIN_RETRIES, QUIET_RETRIES, RetryBudget


class Call:
    """A request; `attempts` counts what it sent."""

    def __init__(self) -> None:
        self.status = 0
        self.attempts = 1


class Traffic:
    """Calls over a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.budget = RetryBudget(lambda: self.now)
        self.retries = 0

    def begin(self, count: int) -> list[Call]:
        self.budget.begun += count
        return [Call() for _ in range(count)]

    def fail(self, call: Call) -> bool:
        """An attempt of `call` has failed. Whether it may go on; if not, it is answered."""
        if call.attempts < 4 and self.budget.allows_another(call):
            self.budget.spend(call)
            call.attempts += 1
            self.retries += 1
            return True
        self.end(call, 500)
        return False

    def end(self, call: Call, status: int = 200) -> None:
        call.status = status
        self.budget.settle(call)
        self.budget.ended += 1


@pytest.mark.parametrize(("in_flight", "allowed"), [(1, 1), (3, 3), (10, 3), (16, 3), (20, 4), (100, 20)])
def test_retries_under_way_are_a_fifth_of_what_is_in_flight(in_flight: int, allowed: int) -> None:
    traffic = Traffic()
    calls = traffic.begin(in_flight)
    assert [traffic.fail(call) for call in calls].count(True) == allowed


@pytest.mark.parametrize("count", [16, 50, 200, 1000])
@pytest.mark.parametrize("attempt_seconds", [0.0, 0.03, 0.3, 1.5, 100.0])
def test_calls_that_fail_at_once_make_a_fifth_more(count: int, attempt_seconds: float) -> None:
    """However long each attempt takes to fail, and whatever has ended by then."""
    traffic = Traffic()
    calls = traffic.begin(count)
    while calls:
        traffic.now += attempt_seconds
        calls = [call for call in calls if traffic.fail(call)]
    least = max(MIN_RETRIES, count // 5)
    # What is left of a small burst a second later is traffic so low that it may have its three at a time.
    assert least <= traffic.retries <= least + (0 if count >= 200 or attempt_seconds < 1 else 6)
    assert traffic.budget.begun == traffic.budget.ended


@pytest.mark.parametrize("spread", [0.1, 0.5, 1.0])
def test_calls_that_come_and_fail_one_after_the_other_within_a_second(spread: float) -> None:
    """Few are in flight at any moment, since each fails in no time and pauses 25 ms before its next try."""
    traffic = Traffic()
    waiting: list[tuple[float, Call]] = []
    for _ in range(200):
        traffic.now += spread / 200
        due = [call for at, call in waiting if at <= traffic.now]
        waiting = [(at, call) for at, call in waiting if at > traffic.now]
        for call in [*due, *traffic.begin(1)]:
            if traffic.fail(call):
                waiting.append((traffic.now + 0.025, call))
    assert 3 <= traffic.retries <= 40


def test_a_burst_has_no_second_chance_when_the_next_second_begins() -> None:
    traffic = Traffic()
    first, later = traffic.begin(100), traffic.begin(100)
    waiting = [call for call in first if traffic.fail(call)]
    assert len(waiting) == 40 / 2 + 20  # a fifth of the 200 in flight
    traffic.now += 0.999
    waiting += [call for call in later if traffic.fail(call)]
    traffic.now += 0.002
    for call in waiting:
        traffic.fail(call)
    assert traffic.retries == 40


def test_quick_calls_that_ended_within_the_second_count() -> None:
    """Ten thousand calls a second of which 40 are in flight: a tenth fails, and all of that may move on."""
    traffic = Traffic()
    running: list[Call] = []
    refused = 0
    for number in range(30_000):
        traffic.now += 0.0001
        running += traffic.begin(1)
        if len(running) > 40:
            call = running.pop(0)
            if number % 10 == 0 and call.attempts == 1 and number > 1000:
                if traffic.fail(call):
                    running.append(call)
                else:
                    refused += 1
            else:
                traffic.end(call)
    assert refused < 100  # while the first second's count begins
    assert traffic.retries > 2500


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_a_few_callers_always_fail_over(at_once: int) -> None:
    """As fast as they can, for a minute: each call's first attempt fails, and its second answers."""
    traffic = Traffic()
    while traffic.now < 160:
        calls = traffic.begin(at_once)
        for call in calls:
            assert traffic.fail(call)
        traffic.now += 0.026
        for call in calls:
            traffic.end(call)


def test_a_stream_that_was_retried_is_none_any_more_once_it_has_begun() -> None:
    traffic = Traffic()
    streams = traffic.begin(3)
    for stream in streams:
        assert traffic.fail(stream)
    (other,) = traffic.begin(1)
    assert not traffic.budget.allows_another(other)
    for stream in streams:
        stream.status = 200
    assert traffic.fail(other)


def test_quiet_traffic_has_its_bound_too() -> None:
    """Ten in flight all the time, of which one after the other fails at once."""
    traffic = Traffic()
    traffic.begin(10)
    for _ in range(QUIET_RETRIES):
        (call,) = traffic.begin(1)
        assert traffic.fail(call)
        traffic.end(call)
    (call,) = traffic.begin(1)
    assert not traffic.budget.allows_another(call)
    traffic.now += 1.01
    assert traffic.budget.allows_another(call)


_Move = Callable[[Traffic, list[Call], float], None]


def _begin(traffic: Traffic, running: list[Call], size: float) -> None:
    running += traffic.begin(int(size * 50))


def _fail(traffic: Traffic, running: list[Call], size: float) -> None:
    for call in running[: int(size * 50) + 1]:
        if not traffic.fail(call):
            running.remove(call)


def _answer(traffic: Traffic, running: list[Call], size: float) -> None:
    for _ in range(min(len(running), int(size * 50))):
        traffic.end(running.pop(0))


def _wait(traffic: Traffic, running: list[Call], size: float) -> None:
    traffic.now += size


@given(
    st.lists(
        st.tuples(st.sampled_from([_begin, _fail, _answer, _wait]), st.floats(0, 1, allow_nan=False)),
        max_size=40,
    )
)
def test_the_books_balance(moves: list[tuple[_Move, float]]) -> None:
    """Nothing is counted twice or kept for ever, and in the end there is room as at the start."""
    traffic = Traffic()
    running: list[Call] = []
    for move, size in moves:
        move(traffic, running, size)
        assert traffic.budget.begun - traffic.budget.ended == len(running)
        assert traffic.retries <= 3 * traffic.budget.begun
    for call in running:
        traffic.end(call)
    traffic.now += 2
    fresh = traffic.begin(4)
    assert [traffic.fail(call) for call in fresh] == [True, True, True, False]


@pytest.mark.parametrize(("in_flight", "allowed"), [(1, QUIET_RETRIES), (200, 40), (1000, 200)])
def test_what_is_sent_again_over_a_reset_counts_as_a_retry(in_flight: int, allowed: int) -> None:
    traffic = Traffic()
    calls = traffic.begin(in_flight)
    assert [traffic.budget.resend() for _ in range(allowed + 2)] == [True] * allowed + [False] * 2
    if in_flight > MIN_RETRIES:
        assert not traffic.fail(calls[0])
    traffic.now += 1.1
    assert traffic.budget.resend()
