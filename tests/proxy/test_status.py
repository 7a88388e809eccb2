from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest

from fastllm_proxy.access_log import AccessLog
from fastllm_proxy.control_plane import ControlPlane
from fastllm_proxy.lag import LoopLag
from fastllm_proxy.loops import Supervisor
from fastllm_proxy.outbox import Outbox
from fastllm_proxy.sink import LineSink
from fastllm_proxy.snapshots import SnapshotStore
from fastllm_proxy.status import Identity, Intervals, Status, new_identity
from fastllm_proxy.subscribe import Subscriber
from fastllm_shared.health import Ejection, UsageCounters
from fastllm_shared.snapshot import FrontendModelEntry, RuleEntry, Snapshot, TargetEntry
from tests.fakes.control import TOKEN, FakeControl
from tests.fakes.log import CapturedLog
from tests.fakes.replica import LiveBackends, snapshot_of

URL = "http://127.0.0.1:1/v1"


class Rig:
    """A status over real parts, none of which runs."""

    def __init__(self, control: FakeControl, plane: ControlPlane) -> None:
        log = CapturedLog().log
        self.control = control
        self.now = 1000.0
        self.live = LiveBackends()
        self.store = SnapshotStore(self.live.registry)
        self.subscriber = Subscriber(control=plane, accept=self.store.accept, log=log, poll_seconds=0.05)
        self.supervisor = Supervisor(log, lambda: self.now)
        self.outbox = Outbox(replica="r", control=plane, log=log)
        sink = LineSink(2)
        self.status = Status(
            identity=Identity(replica="r", host="h", version="1.2.3", started_at=900.0),
            intervals=Intervals(config_poll=5, health_report=10),
            store=self.store,
            subscriber=self.subscriber,
            outbox=self.outbox,
            supervisor=self.supervisor,
            lag=LoopLag(),
            access_log=AccessLog(sink, "text"),
            sinks=(sink,),
        )

    async def serve(self, snapshot: Snapshot) -> None:
        self.control.publish(snapshot)
        await self.subscriber.turn()
        assert self.store.current is not None


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with FakeControl.start() as control, ControlPlane(control.url, (TOKEN,), "test") as plane:
        built = Rig(control, plane)
        yield built
        await built.live.close()


async def test_before_the_first_snapshot(rig: Rig) -> None:
    assert not rig.status.ready
    health = rig.status.health(detail=True)
    assert (health.status, health.snapshot_version, health.keys) == ("not_ready", 0, 0)
    assert health.snapshot_age_seconds is None
    assert rig.status.report({}).snapshot_version == 0
    assert rig.status.readings().backends == ()


async def test_serving(rig: Rig) -> None:
    await rig.serve(snapshot_of(URL, version=42, keys=("a", "b")))
    assert rig.status.ready
    health = rig.status.health(detail=False)
    assert (health.status, health.snapshot_version, health.keys) == ("ok", 42, 2)
    assert health.snapshot_age_seconds is not None
    assert health.snapshot_age_seconds < 5
    (backend,) = health.backends
    assert (backend.backend_id, backend.model, backend.healthy, backend.inflight) == ("b1", "qwen", True, 0)


async def test_names_and_reasons_only_in_detail(rig: Rig) -> None:
    await rig.serve(snapshot_of(URL))
    assert rig.store.current is not None
    rig.store.current.backends["b1"].ejection = Ejection(path="probe", reason="timeout")
    public = msgspec.json.encode(rig.status.health(detail=False))
    assert b"gpu-1" not in public
    assert b"timeout" not in public
    assert msgspec.json.decode(public)["backends"][0]["ejected"] == {"path": "probe", "until": None}
    detail = msgspec.json.decode(msgspec.json.encode(rig.status.health(detail=True)))["backends"][0]
    assert (detail["provider"], detail["ejected"]["reason"]) == ("gpu-1", "timeout")


async def test_degraded_when_a_model_has_no_usable_backend(rig: Rig) -> None:
    await rig.serve(snapshot_of(URL, URL))
    assert rig.store.current is not None
    first, second = rig.store.current.backends.values()
    first.ejection = Ejection(path="probe", reason="timeout")
    assert rig.status.health(detail=False).status == "ok"
    second.ejection = Ejection(path="probe", reason="timeout")
    assert rig.status.health(detail=False).status == "degraded"
    assert rig.status.ready  # they are still tried, last


async def test_degraded_when_a_model_leads_nowhere(rig: Rig) -> None:
    lost = FrontendModelEntry(id="f2", name="lost", created_at=1.0)
    snapshot = snapshot_of(URL)
    models = (*snapshot.frontend_models, lost)
    await rig.serve(msgspec.structs.replace(snapshot, frontend_models=models))
    assert rig.status.health(detail=False).status == "degraded"


@pytest.mark.parametrize(
    ("rules", "status"),
    [
        ((RuleEntry(0, targets=(TargetEntry("qwen"),)),), "ok"),
        ((RuleEntry(0, targets=(TargetEntry("gone"),)),), "degraded"),
        ((RuleEntry(0, action="jump", jump="assistant"),), "ok"),
        ((RuleEntry(0, action="jump", jump="gone"),), "degraded"),
    ],
)
async def test_a_model_may_be_served_by_its_rules_alone(
    rig: Rig, rules: tuple[RuleEntry, ...], status: str
) -> None:
    snapshot = snapshot_of(URL)
    ruled = FrontendModelEntry(id="f-2", name="ruled", created_at=0, rules=rules)
    await rig.serve(msgspec.structs.replace(snapshot, frontend_models=(*snapshot.frontend_models, ruled)))
    assert rig.status.health(detail=False).status == status


async def test_degraded_when_a_loop_is_overdue(rig: Rig) -> None:
    async def never() -> None:
        raise AssertionError("is never started")

    rig.supervisor.add("probe", never, interval_seconds=10)
    await rig.serve(snapshot_of(URL))
    assert rig.status.health(detail=False).status == "ok"
    rig.now += 31
    health = rig.status.health(detail=False)
    assert health.status == "degraded"
    assert health.loops["probe"].last_turn_at is None


async def test_draining(rig: Rig) -> None:
    await rig.serve(snapshot_of(URL))
    rig.status.draining = True
    assert not rig.status.ready
    assert rig.status.report({}).draining


async def test_the_report(rig: Rig) -> None:
    await rig.serve(snapshot_of(URL, version=42))
    report = rig.status.report({"invalid_api_key": 3})
    assert (report.replica, report.host, report.version, report.started_at) == ("r", "h", "1.2.3", 900.0)
    assert (report.config_poll_seconds, report.health_report_interval_seconds) == (5, 10)
    assert report.snapshot_version == 42
    assert report.unattributed == {"invalid_api_key": 3}
    assert report.usage == UsageCounters()
    assert [view.backend_id for view in report.backends] == ["b1"]


async def test_the_readings(rig: Rig) -> None:
    await rig.serve(snapshot_of(URL, version=42))
    rig.control.publish(snapshot_of(URL, version=41))
    await rig.subscriber.turn()
    readings = rig.status.readings()
    assert readings.snapshot_version == 42
    assert readings.snapshots_refused == {"older": 1}
    assert [backend.id for backend in readings.backends] == ["b1"]
    assert readings.log_lines_dropped == 0


def test_each_process_is_a_replica_of_its_own() -> None:
    first, second = new_identity("1", lambda: 7.0), new_identity("1", lambda: 7.0)
    assert first.replica != second.replica
    assert first.replica.startswith(first.host)
    assert first.started_at == 7.0
