"""What a proxy may say of itself, and what it is told."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fastllm_shared.health import HealthReport, encode_report
from tests.fakes.control_plane import PROXY_TOKEN, Answer, ControlPlane
from tests.fakes.usage import rows_of

REPORT = HealthReport(
    replica="r1",
    host="h1",
    version="0.1.0",
    started_at=0.0,
    snapshot_version=0,
    config_poll_seconds=5.0,
    health_report_interval_seconds=10.0,
)


async def post(plane: ControlPlane, report: HealthReport) -> Answer:
    return await plane.call("POST", "/health-report", raw=encode_report(report), token=PROXY_TOKEN)


async def test_a_report_replaces_the_last_one_of_its_replica(plane: ControlPlane) -> None:
    published = await plane.services.publisher.newer_than(0, 5)
    assert published is not None
    for version in (0, 3):
        answer = await post(plane, msgspec.structs.replace(REPORT, snapshot_version=version))
        assert answer.status == 200
        assert answer.json["newest_snapshot_version"] >= published.version
        assert answer.version is None
    [row] = (await plane.call("GET", "/admin/fleet")).json["replicas"]
    assert (row["replica"], row["snapshot_version"]) == ("r1", 3)


async def test_what_belongs_to_nobody_is_counted_by_minute_and_reason(plane: ControlPlane) -> None:
    for counts in ({"no_key": 2, "bad_key": 1}, {"no_key": 3, "nothing": 0}):
        await post(plane, msgspec.structs.replace(REPORT, unattributed=counts))
    found = await rows_of(
        plane.services.database,
        "SELECT reason, sum(count)::int FROM gateway_rejections GROUP BY reason ORDER BY reason",
    )
    assert found == [("bad_key", 1), ("no_key", 5)]
    series = (await plane.call("GET", "/admin/timeseries")).json
    assert sum(point["refused_unattributed"] for point in series["points"]) == 6


BACKEND: dict[str, Any] = {
    "backend_id": "b1",
    "provider": "gpu-1",
    "model": "qwen",
    "healthy": False,
    "inflight": 0,
    "ejected": {"path": "probe", "reason": "refused", "until": 1e12},
}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"replica": ""}, "replica"),
    ({"replica": "x" * 257}, "replica"),
    ({"replica": "a\x00"}, "replica"),
    ({"host": "x" * 257}, "host"),
    ({"config_poll_seconds": 0}, "config_poll_seconds"),
    ({"health_report_interval_seconds": -1}, "health_report_interval_seconds"),
    ({"health_report_interval_seconds": 1e9}, "health_report_interval_seconds"),
    ({"snapshot_version": -1}, "snapshot_version"),
    ({"snapshot_version": 2**63}, "snapshot_version"),
    ({"started_at": 1e15}, "started_at"),
    ({"usage": {"served": -1}}, "usage.served"),
    ({"unattributed": {"x": -1}}, "unattributed.x"),
    ({"unattributed": {"": 1}}, "unattributed"),
    ({"unattributed": {f"r{n}": 1 for n in range(65)}}, "unattributed"),
    ({"backends": [BACKEND]}, "backends[0].ejected.until"),
    ({"backends": [{}]}, "backends[0].backend_id"),
    ({"mood": "fine"}, "mood"),
]


@pytest.mark.parametrize(("changes", "field"), REFUSED)
async def test_what_could_not_be_shown_later_is_refused_by_name(
    plane: ControlPlane, changes: dict[str, Any], field: str
) -> None:
    body = msgspec.to_builtins(REPORT) | changes
    answer = await plane.call("POST", "/health-report", body, token=PROXY_TOKEN)
    assert (answer.status, answer.error["field"]) == (400, field), answer.body
    assert (await plane.call("GET", "/admin/fleet")).json["replicas"] == []


async def test_only_proxies_report(plane: ControlPlane) -> None:
    body = msgspec.to_builtins(REPORT)
    assert (await plane.call("POST", "/health-report", body, token=None)).status == 401
    assert (await plane.call("POST", "/health-report", body)).status == 403
