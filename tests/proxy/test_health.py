from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from fastllm_proxy.health import ABSENT_PAUSE_INTERVALS, Prober
from fastllm_proxy.metrics import Metrics
from fastllm_shared.health import Ejection
from fastllm_shared.snapshot import Snapshot
from tests.fakes.engine import Answer, FakeEngine, Fault
from tests.fakes.log import CapturedLog
from tests.fakes.replica import LiveBackends, snapshot_of, with_backend, with_provider

FAILING = Answer(status=500)


class Rig:
    """A prober over live backends, with a clock that only moves when told."""

    def __init__(self, live: LiveBackends) -> None:
        self.live = live
        self.metrics = Metrics()
        self.captured = CapturedLog()
        self.now = 1000.0
        self.prober = Prober(
            backends=lambda: live.current.values(),
            metrics=self.metrics,
            log=self.captured.log,
            version="1.2.3",
            interval_seconds=10.0,
            timeout_seconds=0.3,
            unhealthy_after=2,
            clock=lambda: self.now,
            noise=lambda: 0.5,
        )

    async def round(self) -> None:
        """Everything that is due within an interval is asked and judged."""
        self.now += 12
        await self.prober.turn()
        while self.prober.busy:  # noqa: ASYNC110 - probes end without telling anybody but their backends
            await asyncio.sleep(0.005)

    def serve(self, snapshot: Snapshot) -> None:
        self.live.adopt(snapshot)

    def ejection(self, backend: str = "b1") -> Ejection | None:
        return self.live.current[backend].ejection


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    live = LiveBackends()
    built = Rig(live)
    yield built
    await built.prober.close()
    await live.close()


async def started(rig: Rig, snapshot: Snapshot) -> None:
    rig.serve(snapshot)
    await rig.prober.turn()


async def test_failures_in_a_row_eject_and_one_pass_restores(rig: Rig, engine: FakeEngine) -> None:
    await started(rig, snapshot_of(engine.url))
    engine.script("/models", FAILING, Answer(), FAILING, FAILING, Answer())
    await rig.round()
    await rig.round()
    await rig.round()
    assert rig.ejection() is None  # failed, passed, failed: never two in a row
    await rig.round()
    assert rig.ejection() == Ejection(path="probe", reason="status", until=None)
    assert not rig.live.current["b1"].healthy
    await rig.round()
    assert rig.ejection() is None
    (out,) = rig.captured.events("backend out of rotation")
    assert {key: out[key] for key in ("backend", "provider", "model", "path", "reason", "until")} == {
        "backend": "b1",
        "provider": "gpu-1",
        "model": "qwen",
        "path": "probe",
        "reason": "status",
        "until": None,
    }
    (back,) = rig.captured.events("backend healthy, back in rotation")
    assert back["backend"] == "b1"
    assert rig.metrics.ejections == {("b1", "probe", "status"): 1}


async def test_it_is_said_once_however_long_it_lasts(rig: Rig, engine: FakeEngine) -> None:
    await started(rig, snapshot_of(engine.url))
    engine.script("/models", FAILING)
    for _ in range(5):
        await rig.round()
    assert len(rig.captured.entries) == 1
    engine.script("/models", Answer(fault=Fault("reset")))
    await rig.round()
    assert rig.ejection() == Ejection(path="probe", reason="reset", until=None)
    assert len(rig.captured.entries) == 1


async def test_a_credential_fault_is_reported_as_such(rig: Rig, engine: FakeEngine) -> None:
    engine.api_key = "another"
    await started(rig, snapshot_of(engine.url))
    await rig.round()
    await rig.round()
    assert rig.ejection() == Ejection(path="probe", reason="credential", until=None)


async def test_an_endpoint_without_models_is_left_alone_for_long(rig: Rig, engine: FakeEngine) -> None:
    await started(rig, snapshot_of(engine.url))
    engine.script("/models", FAILING, FAILING, Answer(status=404))
    await rig.round()
    await rig.round()
    await rig.round()
    assert rig.ejection() is None
    for _ in range(ABSENT_PAUSE_INTERVALS // 2):
        await rig.round()
    assert engine.hits("/models") == 3
    for _ in range(ABSENT_PAUSE_INTERVALS // 2):
        await rig.round()
    assert engine.hits("/models") == 4


async def test_an_endpoint_is_asked_once_for_all_its_backends(rig: Rig, engine: FakeEngine) -> None:
    await started(rig, snapshot_of(engine.url, engine.url, engine.url + "/"))
    engine.script("/models", FAILING)
    await rig.round()
    assert engine.hits("/models") == 1
    await rig.round()
    assert engine.hits("/models") == 2
    assert all(rig.ejection(id_) for id_ in ("b1", "b2", "b3"))


async def test_another_credential_is_another_endpoint(rig: Rig, engine: FakeEngine) -> None:
    first, second = (
        with_provider(snapshot_of(engine.url, engine.url), credential=credential).providers[index]
        for index, credential in enumerate(("a", "b"))
    )
    await started(
        rig, msgspec.structs.replace(snapshot_of(engine.url, engine.url), providers=(first, second))
    )
    await rig.round()
    assert {request.header("authorization") for request in engine.requests} == {"Bearer a", "Bearer b"}


async def test_a_stalled_endpoint_costs_only_its_own_probe(rig: Rig, engine: FakeEngine) -> None:
    async with FakeEngine.start() as other:
        snapshot = with_backend(snapshot_of(engine.url, other.url), health_timeout_seconds=60.0)
        await started(rig, snapshot)
        engine.script("/models", Answer(fault=Fault("stall", "body")))
        for hits in (1, 2, 3):
            rig.now += 12
            await rig.prober.turn()
            await other.arrived(hits)
            while rig.prober.busy > 1:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.005)
        assert engine.hits("/models") == 1


async def test_each_backend_has_its_own_threshold_and_patience(rig: Rig, engine: FakeEngine) -> None:
    patient = with_backend(snapshot_of(engine.url), unhealthy_after=3, health_timeout_seconds=5.0)
    await started(rig, patient)
    engine.script("/models", Answer(delay_to_head=0.5), FAILING)
    await rig.round()  # half a second would be too long for the deployment's 0.3 s
    for failures in (1, 2, 3):
        assert rig.ejection() is None, failures
        await rig.round()
    assert rig.ejection() is not None


async def test_cloud_providers_are_not_probed(rig: Rig, engine: FakeEngine) -> None:
    await started(rig, with_provider(snapshot_of(engine.url), kind="cloud"))
    await rig.round()
    assert engine.requests == []


async def test_what_traffic_took_out_a_passing_probe_does_not_bring_back(
    rig: Rig, engine: FakeEngine
) -> None:
    await started(rig, snapshot_of(engine.url))
    out = Ejection(path="traffic", reason="timeout", until=5000.0)
    rig.live.current["b1"].ejection = out
    await rig.round()
    assert rig.ejection() == out
    engine.script("/models", FAILING)
    await rig.round()
    await rig.round()
    assert rig.ejection() == out


async def test_state_follows_the_endpoint_through_snapshots(rig: Rig, engine: FakeEngine) -> None:
    await started(rig, snapshot_of(engine.url))
    engine.script("/models", FAILING)
    await rig.round()
    rig.serve(snapshot_of(engine.url, version=2))
    await rig.round()
    assert rig.ejection() is not None
    rig.serve(with_provider(snapshot_of(engine.url, version=3), credential="changed"))
    assert rig.ejection() is None  # another identity: a new backend, innocent until shown otherwise
    await rig.prober.turn()
    await rig.round()
    assert rig.ejection() is None
    await rig.round()
    assert rig.ejection() is not None


async def test_an_endpoint_that_leaves_takes_its_probe_with_it(rig: Rig, engine: FakeEngine) -> None:
    await started(rig, with_backend(snapshot_of(engine.url), health_timeout_seconds=60.0))
    engine.script("/models", Answer(fault=Fault("stall", "body")))
    rig.now += 12
    await rig.prober.turn()
    await engine.arrived(1)
    rig.serve(snapshot_of())
    await rig.prober.turn()
    for connection in engine.connections:
        await connection.ended()
    assert rig.prober.busy == 0


async def test_probes_are_spread_over_the_interval(rig: Rig, engine: FakeEngine) -> None:
    noises = iter((0.0, 0.9, 0.5, 0.5))
    live = rig.live
    prober = Prober(
        backends=lambda: live.current.values(),
        metrics=rig.metrics,
        log=rig.captured.log,
        version="1",
        interval_seconds=10.0,
        timeout_seconds=1.0,
        unhealthy_after=2,
        clock=lambda: rig.now,
        noise=lambda: next(noises),
    )
    async with FakeEngine.start() as other:
        rig.serve(snapshot_of(engine.url, other.url))
        await prober.turn()
        await engine.arrived(1)
        assert other.requests == []
        rig.now += 9
        await prober.turn()
        await other.arrived(1)
        await prober.close()
    assert prober.tick_seconds == 1.0


async def test_a_probe_that_breaks_is_the_loops_failure(rig: Rig, engine: FakeEngine) -> None:
    await started(rig, snapshot_of(engine.url))
    rig.live.current["b1"].base_path = "/ü"
    await rig.round()
    with pytest.raises(UnicodeEncodeError):
        await rig.prober.turn()
    await rig.prober.turn()
