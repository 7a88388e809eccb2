"""What the reports of the proxies amount to. Pure: reports, versions and the time go in, verdicts come out.

Reports are never merged: each replica is judged by what it said itself. Only where one replica calls a
backend unreachable that another reaches is that said beside them, as a suspected partition.

    gone         3 reports were missed; listed for 10 minutes more
    draining     it said so
    current      it serves the newest snapshot
    picking_up   it lacks a version that came out too lately for it to have fetched and reported it
    stuck        it lacks a version that has been out for longer than that

How many versions it lacks means nothing: what counts is how long the oldest of them has been out. That is
the newest's age when nothing else came after, and it is how long the replica has been continuously behind
when versions follow each other quickly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from fastllm_shared.health import BackendView, HealthReport

ReplicaState = Literal["current", "picking_up", "stuck", "draining", "gone"]

MISSED_REPORTS = 3
LISTED_WHEN_GONE_SECONDS = 600.0
STUCK_MARGIN_SECONDS = 5.0
UNREACHABLE_REASONS = frozenset(("timeout", "refused", "reset"))
SUSPECT_AFTER_REPORTS = 2
"""For how many report intervals two replicas must disagree: a backend that dies is found by each in its own
time, and meanwhile they differ without any partition."""


class Publication(msgspec.Struct, frozen=True):
    """A version, and since when (Unix seconds) it could be fetched."""

    version: int
    at: float


class Reported(msgspec.Struct, frozen=True):
    """A replica's last report as the database holds it. Times are Unix seconds of the database's clock.

    `unreachable` says since when every report called a backend unreachable. `events_stored` and
    `highest_sequence` are of the usage rows that bear its name.
    """

    report: HealthReport
    reported_at: float
    unreachable: Mapping[str, float] = {}
    events_stored: int = 0
    highest_sequence: int = 0

    @property
    def gone_at(self) -> float:
        """When it will have missed too many reports, unless another arrives."""
        return self.reported_at + MISSED_REPORTS * self.report.health_report_interval_seconds


class Verdict(msgspec.Struct, frozen=True):
    """`behind_since` is when the oldest version that it lacks came out; `None` when it lacks none."""

    state: ReplicaState
    behind_since: float | None


class Partition(msgspec.Struct, frozen=True):
    """A backend that some replicas cannot reach (`unreachable_from`) while others can (`reachable_from`)."""

    backend_id: str
    provider: str
    model: str
    unreachable_from: tuple[str, ...]
    reachable_from: tuple[str, ...]


class UsageGap(msgspec.Struct, frozen=True):
    """Events that a replica counted and that are neither stored, nor on their way, nor known as dropped."""

    replica: str
    served: int
    stored: int
    missing: int
    gone: bool


def judge(known: Reported, newest: int, missing_since: float | None, now: float) -> Verdict:
    """The state of one replica. `newest` is the newest version that is out, 0 when there is none;
    `missing_since` is when the first version after the one that it reported came out."""
    report = known.report
    behind = report.snapshot_version < newest
    behind_since = missing_since if behind else None
    if now > known.gone_at:
        return Verdict("gone", behind_since)
    if report.draining:
        return Verdict("draining", behind_since)
    if not behind:
        return Verdict("current", None)
    allowed = report.config_poll_seconds + report.health_report_interval_seconds + STUCK_MARGIN_SECONDS
    late = missing_since is not None and now - missing_since > allowed
    return Verdict("stuck" if late else "picking_up", behind_since)


def is_listed(known: Reported, now: float) -> bool:
    """Whether the fleet still shows it."""
    return now <= known.gone_at + LISTED_WHEN_GONE_SECONDS


def is_unreachable(backend: BackendView) -> bool:
    """Whether the replica could not get through to it, as opposed to disliking what it got."""
    return backend.ejected is not None and backend.ejected.reason in UNREACHABLE_REASONS


def still_unreachable(before: Mapping[str, float], report: HealthReport, now: float) -> dict[str, float]:
    """Since when each backend that `report` calls unreachable has been called so without a break."""
    return {b.backend_id: before.get(b.backend_id, now) for b in report.backends if is_unreachable(b)}


def partitions(replicas: Iterable[Reported], now: float) -> tuple[Partition, ...]:
    """The backends on whose reach living replicas have disagreed for longer than finding out takes."""
    alive = [known for known in replicas if now <= known.gone_at]
    cut_off: dict[str, list[str]] = {}
    reached: dict[str, list[str]] = {}
    shown: dict[str, BackendView] = {}
    for known in alive:
        patience = SUSPECT_AFTER_REPORTS * known.report.health_report_interval_seconds
        for backend in known.report.backends:
            since = known.unreachable.get(backend.backend_id)
            if is_unreachable(backend) and since is not None and known.reported_at - since >= patience:
                cut_off.setdefault(backend.backend_id, []).append(known.report.replica)
                shown[backend.backend_id] = backend
            elif backend.healthy and backend.ejected is None:
                reached.setdefault(backend.backend_id, []).append(known.report.replica)
    return tuple(
        Partition(
            backend_id=backend_id,
            provider=shown[backend_id].provider,
            model=shown[backend_id].model,
            unreachable_from=tuple(sorted(cut_off[backend_id])),
            reachable_from=tuple(sorted(reached[backend_id])),
        )
        for backend_id in sorted(cut_off.keys() & reached.keys())
    )


def usage_gaps(replicas: Sequence[Reported], now: float) -> tuple[UsageGap, ...]:
    """The replicas some of whose events are unaccounted for.

    A living replica is believed about what is still on its way. What a gone one had queued died with it; the
    numbers on its events may show that it made more than it last reported.
    """
    found = []
    for known in replicas:
        usage, gone = known.report.usage, now > known.gone_at
        served = max(usage.served, known.highest_sequence) if gone else usage.served
        stored = known.events_stored if gone else max(usage.stored, known.events_stored)
        waiting = usage.spooled if gone else usage.queued + usage.spooled
        missing = served - stored - waiting - usage.dropped
        if missing > 0:
            found.append(UsageGap(known.report.replica, served, known.events_stored, missing, gone))
    return tuple(found)
