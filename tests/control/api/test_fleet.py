"""The fleet as it is answered: the fields that scripts read, alike from every control plane."""

from __future__ import annotations

import msgspec

from fastllm_control.services.fleet import describe
from fastllm_shared.health import BackendView, Ejection, GateView, HealthReport, UsageCounters, encode_report
from tests.fakes.control_plane import PROXY_TOKEN, ControlPlane
from tests.fakes.usage import opened, rows_of

EJECTED = Ejection("probe", "timeout", 1_800_000_000.0)
REPORT = HealthReport(
    replica="r1",
    host="h1",
    version="0.1.0",
    started_at=1.0,
    snapshot_version=0,
    config_poll_seconds=2.0,
    health_report_interval_seconds=3.0,
    backends=(
        BackendView(
            "b1", "gpu-1", "qwen", False, 4, Ejection("probe", "timeout", 1_800_000_000.0), GateView(2, 1, 3)
        ),
        BackendView("b2", "gpu-2", "qwen", True, 0),
    ),
    usage=UsageCounters(served=5, stored=2, queued=2, spooled=0, dropped=1),
)


async def post(plane: ControlPlane, report: HealthReport) -> None:
    answer = await plane.call("POST", "/health-report", raw=encode_report(report), token=PROXY_TOKEN)
    assert answer.status == 200, answer.body


async def test_an_empty_fleet(plane: ControlPlane) -> None:
    published = await plane.services.publisher.newer_than(0, 5)
    assert published is not None
    fleet = (await plane.call("GET", "/admin/fleet")).json
    assert (fleet["config_poll_seconds"], fleet["health_report_interval_seconds"]) == (5.0, 10.0)
    assert fleet["newest_snapshot_version"] >= published.version
    assert 0 <= fleet["newest_snapshot_age_seconds"] < 60
    assert (fleet["replicas"], fleet["partition_suspected"]) == ([], [])


async def test_a_replica_as_promised(plane: ControlPlane) -> None:
    await post(plane, REPORT)
    fleet = (await plane.call("GET", "/admin/fleet")).json
    assert (fleet["config_poll_seconds"], fleet["health_report_interval_seconds"]) == (2.0, 3.0)
    [row] = fleet["replicas"]
    assert (row["replica"], row["host"], row["version"], row["state"]) == ("r1", "h1", "0.1.0", "picking_up")
    assert row["behind_since"].endswith("Z")
    assert row["usage"] == {"served": 5, "stored": 2, "queued": 2, "spooled": 0, "dropped": 1}
    assert row["backends"] == [
        {
            "backend_id": "b1",
            "provider": "gpu-1",
            "model": "qwen",
            "healthy": False,
            "ejected": {"path": "probe", "reason": "timeout", "until": "2027-01-15T08:00:00Z"},
            "inflight": 4,
            "gate": {"ceiling": 2, "in_use": 1, "queued": 3},
        },
        {
            "backend_id": "b2",
            "provider": "gpu-2",
            "model": "qwen",
            "healthy": True,
            "ejected": None,
            "inflight": 0,
            "gate": None,
        },
    ]


async def test_a_replica_that_has_the_newest_is_current_and_every_control_plane_says_so(
    plane: ControlPlane, database_url: str
) -> None:
    [(newest,)] = await rows_of(plane.services.database, "SELECT version FROM config")
    assert await plane.services.publisher.newer_than(newest - 1, 5)
    await post(plane, msgspec.structs.replace(REPORT, snapshot_version=newest))
    async with opened(database_url) as another, another.read() as session:
        elsewhere = msgspec.json.encode(await describe(session, 5.0, 10.0))
    fleets = [(await plane.call("GET", "/admin/fleet")).json, msgspec.json.decode(elsewhere)]
    for fleet in fleets:
        del fleet["newest_snapshot_age_seconds"]
    assert fleets[0] == fleets[1]
    [row] = fleets[0]["replicas"]
    assert (row["state"], row["behind_since"]) == ("current", None)


async def test_a_draining_replica(plane: ControlPlane) -> None:
    await post(plane, msgspec.structs.replace(REPORT, draining=True))
    [row] = (await plane.call("GET", "/admin/fleet")).json["replicas"]
    assert row["state"] == "draining"


async def test_who_may_look(plane: ControlPlane) -> None:
    await plane.principal("reader", await plane.role("usage-only", ("usage:read", "*")))
    assert (await plane.call("GET", "/admin/fleet", token=await plane.key_of("reader"))).status == 403
    assert (await plane.call("GET", "/admin/fleet", token=None)).status == 401
