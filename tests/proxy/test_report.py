from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from fastllm_proxy.control_plane import ControlPlane
from fastllm_proxy.metrics import Metrics
from fastllm_proxy.report import Reporter, backend_views
from fastllm_shared.health import BackendView, Ejection, HealthReport
from tests.fakes.control import TOKEN, FakeControl, Scripted
from tests.fakes.log import CapturedLog
from tests.fakes.replica import LiveBackends, snapshot_of


def compose(unattributed: dict[str, int]) -> HealthReport:
    return HealthReport(
        replica="r1",
        host="h",
        version="1",
        started_at=1.0,
        snapshot_version=7,
        config_poll_seconds=5,
        health_report_interval_seconds=10,
        unattributed=unattributed,
    )


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
async def reporter(control: FakeControl, metrics: Metrics, captured: CapturedLog) -> AsyncIterator[Reporter]:
    async with ControlPlane(control.url, (TOKEN,), "test") as plane:
        yield Reporter(control=plane, compose=compose, metrics=metrics, log=captured.log)


async def test_a_report_arrives(reporter: Reporter, control: FakeControl) -> None:
    await reporter.turn()
    assert control.reports == [compose({})]


async def test_strangers_are_counted_once_also_when_a_report_is_lost(
    reporter: Reporter, control: FakeControl, metrics: Metrics
) -> None:
    metrics.rejected("invalid_api_key", attributed=False)
    metrics.rejected("model_not_found", attributed=True)
    control.script("/health-report", Scripted(status=500))
    await reporter.turn()
    metrics.rejected("invalid_api_key", attributed=False)
    await reporter.turn()
    metrics.rejected("malformed_request", attributed=False)
    await reporter.turn()
    await reporter.turn()
    assert [report.unattributed for report in control.reports] == [
        {"invalid_api_key": 2},
        {"malformed_request": 1},
        {},
    ]


async def test_trouble_is_told_once_per_cause(
    reporter: Reporter, control: FakeControl, captured: CapturedLog
) -> None:
    control.script("/health-report", Scripted(status=400, body=b"why"), Scripted(status=400))
    await reporter.turn()
    await reporter.turn()
    control.tokens = ()
    await reporter.turn()
    await reporter.turn()
    told = captured.events("health report not accepted")
    assert [entry["cause"] for entry in told] == ["status 400", "proxy token not accepted"]
    assert told[0]["detail"] == "why"


async def test_a_silent_control_plane_costs_one_deadline(reporter: Reporter, control: FakeControl) -> None:
    control.script("/health-report", Scripted(hang=True))
    await reporter.report(0.1)
    assert control.reports == []


async def test_backends_as_this_replica_sees_them() -> None:
    live = LiveBackends()
    try:
        backends = live.adopt(snapshot_of("http://127.0.0.1:1/v1", "http://127.0.0.1:2/v1"))
        backends["b2"].ejection = Ejection(path="probe", reason="timeout")
        backends["b2"].inflight = 3
        assert backend_views(backends.values()) == (
            BackendView(backend_id="b1", provider="gpu-1", model="qwen", healthy=True, inflight=0),
            BackendView(
                backend_id="b2",
                provider="gpu-2",
                model="qwen",
                healthy=False,
                inflight=3,
                ejected=Ejection(path="probe", reason="timeout"),
            ),
        )
    finally:
        await live.close()
