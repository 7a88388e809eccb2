"""The verdicts on replicas, as a table of times."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fastllm_control.fleet import (
    Partition,
    ReplicaState,
    Reported,
    UsageGap,
    Verdict,
    is_listed,
    judge,
    partitions,
    still_unreachable,
    usage_gaps,
)
from fastllm_shared.health import BackendView, Ejection, EjectionReason, HealthReport, UsageCounters

NOW = 1_000_000.0
DEFAULT_REPORT = HealthReport(
    replica="r1",
    host="h1",
    version="0.1.0",
    started_at=0.0,
    snapshot_version=10,
    config_poll_seconds=5.0,
    health_report_interval_seconds=10.0,
)


def reported(age: float = 0.0, **changes: Any) -> Reported:
    return Reported(msgspec.structs.replace(DEFAULT_REPORT, **changes), reported_at=NOW - age)


VERDICTS: list[tuple[str, dict[str, Any], int, float | None, ReplicaState]] = [
    # what, report, newest version, how long the first version that it lacks has been out, state
    ("serves the newest", {}, 10, None, "current"),
    ("serves a newer one than this control plane knows", {"snapshot_version": 11}, 10, None, "current"),
    ("nothing was ever published", {"snapshot_version": 0}, 0, None, "current"),
    ("has nothing yet", {"snapshot_version": 0}, 10, 1.0, "picking_up"),
    ("had nothing for long", {"snapshot_version": 0}, 10, 21.0, "stuck"),
    ("one version behind, just out", {}, 11, 0.0, "picking_up"),
    ("a million versions behind, just out", {}, 1_000_010, 0.1, "picking_up"),
    ("as long as a poll and a report take", {}, 11, 15.0, "picking_up"),
    ("and the margin", {}, 11, 20.0, "picking_up"),
    ("longer than that", {}, 11, 20.01, "stuck"),
    ("when it came out is not known", {}, 11, None, "picking_up"),
    ("slower intervals", {"config_poll_seconds": 30.0}, 11, 44.9, "picking_up"),
    ("slower intervals, longer", {"config_poll_seconds": 30.0}, 11, 45.1, "stuck"),
    ("quicker intervals", {"health_report_interval_seconds": 1.0}, 11, 11.1, "stuck"),
    ("draining and current", {"draining": True}, 10, None, "draining"),
    ("draining and behind", {"draining": True}, 11, 100.0, "draining"),
    ("last report 29.9 s ago", {"age": 29.9}, 10, None, "current"),
    ("last report 30 s ago", {"age": 30.0}, 10, None, "current"),
    ("three reports missed", {"age": 30.1}, 10, None, "gone"),
    ("gone while draining", {"age": 30.1, "draining": True}, 10, None, "gone"),
    ("gone and behind", {"age": 30.1}, 11, 100.0, "gone"),
    ("gone by its own interval", {"age": 3.1, "health_report_interval_seconds": 1.0}, 10, None, "gone"),
]


@pytest.mark.parametrize(("what", "report", "newest", "out_for", "state"), VERDICTS)
def test_verdicts(
    what: str, report: dict[str, Any], newest: int, out_for: float | None, state: ReplicaState
) -> None:
    missing_since = None if out_for is None else NOW - out_for
    verdict = judge(reported(**report), newest, missing_since, NOW)
    behind = report.get("snapshot_version", 10) < newest
    assert verdict == Verdict(state, missing_since if behind else None), what


def test_a_replica_that_keeps_up_with_quick_changes_is_never_stuck() -> None:
    """A version every second for two minutes; it reports every 10 s, each time half a second behind."""
    for second in range(120):
        now = NOW + second
        last_report = now - second % 10
        held = int(last_report - 0.5)
        oldest_lacking = float(held + 1)
        known = Reported(msgspec.structs.replace(DEFAULT_REPORT, snapshot_version=held), last_report)
        assert judge(known, int(now), oldest_lacking, now).state in ("current", "picking_up")


def test_a_replica_that_stays_behind_is_stuck_though_the_newest_is_young() -> None:
    known = reported(snapshot_version=5)
    assert judge(known, 5_000, NOW - 20.5, NOW).state == "stuck"


@pytest.mark.parametrize(("age", "listed"), [(0, True), (31, True), (629.9, True), (630.1, False)])
def test_one_that_is_gone_is_listed_for_ten_minutes_more(age: float, listed: bool) -> None:
    assert is_listed(reported(age), NOW) is listed


def backend(
    identity: str = "b1", reason: EjectionReason | None = None, *, healthy: bool | None = None
) -> BackendView:
    ejected = None if reason is None else Ejection("probe", reason)
    sound = reason is None if healthy is None else healthy
    return BackendView(identity, "gpu-1", "qwen", healthy=sound, inflight=0, ejected=ejected)


def seen_by(replica: str, *views: BackendView, since: float | None = None, age: float = 0.0) -> Reported:
    known = reported(age, replica=replica, backends=views)
    started = {} if since is None else {view.backend_id: NOW - since for view in views}
    return msgspec.structs.replace(known, unreachable=started)


CUT_OFF = Partition("b1", "gpu-1", "qwen", unreachable_from=("r1",), reachable_from=("r2", "r3"))


@pytest.mark.parametrize("reason", ["timeout", "refused", "reset"])
def test_a_backend_that_one_cannot_reach_and_others_can_is_a_suspected_partition(
    reason: EjectionReason,
) -> None:
    fleet = [
        seen_by("r1", backend(reason=reason), since=20),
        seen_by("r3", backend()),
        seen_by("r2", backend()),
    ]
    assert partitions(fleet, NOW) == (CUT_OFF,)


NO_PARTITION: list[tuple[str, list[Reported]]] = [
    ("nobody reaches it", [seen_by(r, backend(reason="refused"), since=60) for r in ("r1", "r2")]),
    (
        "it answers, but with errors",
        [seen_by("r1", backend(reason="status"), since=60), seen_by("r2", backend())],
    ),
    ("a credential", [seen_by("r1", backend(reason="credential"), since=60), seen_by("r2", backend())]),
    ("found just now", [seen_by("r1", backend(reason="refused"), since=19), seen_by("r2", backend())]),
    ("one replica only", [seen_by("r1", backend(reason="refused"), since=60)]),
    ("another backend", [seen_by("r1", backend(reason="refused"), since=60), seen_by("r2", backend("b2"))]),
    (
        "the other is gone",
        [seen_by("r1", backend(reason="refused"), since=60), seen_by("r2", backend(), age=31)],
    ),
    (
        "it is gone itself",
        [seen_by("r1", backend(reason="refused"), since=60, age=31), seen_by("r2", backend())],
    ),
    (
        "the other is not sure",
        [seen_by("r1", backend(reason="refused"), since=60), seen_by("r2", backend(healthy=False))],
    ),
]


@pytest.mark.parametrize(("what", "fleet"), NO_PARTITION)
def test_what_is_no_partition(what: str, fleet: list[Reported]) -> None:
    assert partitions(fleet, NOW) == (), what


def test_since_when_a_backend_is_unreachable_is_kept_while_every_report_says_so() -> None:
    before = {"b1": 5.0, "b2": 6.0, "b3": 7.0}
    report = msgspec.structs.replace(
        DEFAULT_REPORT, backends=(backend("b1", "refused"), backend("b2"), backend("b4", "timeout"))
    )
    assert still_unreachable(before, report, 9.0) == {"b1": 5.0, "b4": 9.0}


def counted(stored_here: int, highest: int = 0, age: float = 0.0, **counters: int) -> Reported:
    known = reported(age, usage=UsageCounters(**counters))
    return msgspec.structs.replace(known, events_stored=stored_here, highest_sequence=highest)


GAPS: list[tuple[str, Reported, int]] = [
    ("nothing happened", counted(0), 0),
    ("all stored", counted(10, 10, served=10, stored=10), 0),
    ("some on the way", counted(5, 5, served=10, stored=5, queued=5), 0),
    ("stored, but not acknowledged yet", counted(10, 10, served=10, stored=5, queued=5), 0),
    ("stored since it reported", counted(90, 90, served=10, stored=5, queued=5), 0),
    ("dropped and known", counted(7, 10, served=10, stored=7, dropped=3), 0),
    ("spooled", counted(7, 7, served=10, stored=7, spooled=3), 0),
    ("unaccounted for by its own count", counted(7, 7, served=10, stored=7), 3),
    ("gone with a queue", counted(7, 7, 31, served=10, stored=7, queued=3), 3),
    ("gone, and what was queued came", counted(10, 10, 31, served=10, stored=7, queued=3), 0),
    ("gone, its spool is not", counted(7, 7, 31, served=10, stored=7, spooled=3), 0),
    ("gone, and made more than it reported", counted(10, 14, 31, served=10, stored=10), 4),
]


@pytest.mark.parametrize(("what", "known", "missing"), GAPS)
def test_usage_gaps(what: str, known: Reported, missing: int) -> None:
    found = usage_gaps([known], NOW)
    assert [gap.missing for gap in found] == ([missing] if missing else []), what


def test_a_gap_says_whose_it_is() -> None:
    [gap] = usage_gaps([counted(10, 14, 31, served=10, stored=10)], NOW)
    assert gap == UsageGap("r1", served=14, stored=10, missing=4, gone=True)
