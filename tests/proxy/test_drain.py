from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastllm_proxy.drain import FLUSH_SECONDS, drain, plan
from tests.fakes.log import CapturedLog


class Scene:
    """A serving replica as a transcript, on a clock that its steps move."""

    def __init__(self, *, inflight: int = 0, busy_seconds: float = 0.0, flush_seconds: float = 0.125) -> None:
        self.now = 1000.0
        self.inflight = inflight
        self.busy_until = self.now + busy_seconds
        self.flush_seconds = flush_seconds
        self.left_behind = 0
        self.steps: list[tuple[str, float]] = []

    def note(self, step: str) -> None:
        self.steps.append((step, self.now - 1000))

    async def sleep(self, seconds: float) -> None:
        self.now += seconds

    def refuse_readiness(self) -> None:
        self.note("not ready")

    def stop_listening(self) -> None:
        self.note("closed")

    async def finish(self, seconds: float) -> int:
        ends = min(max(self.busy_until, self.now), self.now + seconds)
        cut = self.inflight if ends < self.busy_until else 0
        self.now = ends
        self.note("finished")
        return cut

    async def flush(self, deadline: float) -> int:
        self.now = min(self.now + self.flush_seconds, deadline)
        self.note("flushed")
        return self.left_behind


async def run(scene: Scene, delay: float, grace: float) -> CapturedLog:
    captured = CapturedLog()
    steps = plan(scene.now, delay, grace)
    await drain(scene, steps, captured.log, clock=lambda: scene.now, sleep=scene.sleep)
    return captured


async def test_an_idle_replica_waits_only_for_load_balancers() -> None:
    scene = Scene()
    captured = await run(scene, delay=5, grace=30)
    assert scene.steps == [("not ready", 0), ("closed", 5), ("finished", 5), ("flushed", 5.125)]
    assert [entry["event"] for entry in captured.entries] == ["draining", "listener closed"]


async def test_streams_go_on_after_the_listener_has_closed() -> None:
    scene = Scene(inflight=2, busy_seconds=20)
    captured = await run(scene, delay=5, grace=30)
    assert scene.steps == [("not ready", 0), ("closed", 5), ("finished", 20), ("flushed", 20.125)]
    assert captured.entries[0]["inflight"] == 2
    assert not captured.events("requests cut, the shutdown grace is over")


async def test_what_takes_too_long_is_cut_three_seconds_before_the_end() -> None:
    scene = Scene(inflight=2, busy_seconds=100, flush_seconds=100)
    scene.left_behind = 7
    captured = await run(scene, delay=5, grace=30)
    assert scene.steps == [("not ready", 0), ("closed", 5), ("finished", 27), ("flushed", 29.75)]
    assert captured.events("requests cut, the shutdown grace is over")[0]["count"] == 2
    lost = captured.events("usage events lost, the control plane did not take them in time")
    assert lost[0]["count"] == 7


@pytest.mark.parametrize(("delay", "grace"), [(0, 30), (30, 30), (0.1, 0.3), (2, 3)])
async def test_it_never_takes_longer_than_the_grace(delay: float, grace: float) -> None:
    scene = Scene(inflight=1, busy_seconds=1000, flush_seconds=1000)
    await run(scene, delay, grace)
    assert scene.now - 1000 < grace


@given(
    delay=st.floats(min_value=0, max_value=100),
    grace=st.floats(min_value=0.01, max_value=1000),
    begun=st.floats(min_value=0, max_value=1e9),
)
def test_the_steps_of_a_plan_are_in_order(delay: float, grace: float, begun: float) -> None:
    steps = plan(begun, delay, grace)
    assert begun <= steps.listener_closes_at <= steps.cut_at <= steps.flushed_by <= begun + grace
    assert steps.listener_closes_at <= begun + delay
    assert begun + grace - steps.cut_at <= FLUSH_SECONDS + 1e-6
