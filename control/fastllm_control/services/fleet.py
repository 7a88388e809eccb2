"""Taking health reports in, and answering what the fleet looks like."""

from __future__ import annotations

import datetime
import math

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from fastllm_control import fleet
from fastllm_control.errors import Invalid
from fastllm_control.fleet import Partition, Publication, ReplicaState, Reported, UsageGap
from fastllm_control.repositories import replicas as rows
from fastllm_shared.health import (
    BackendView,
    EjectionPath,
    EjectionReason,
    GateView,
    HealthReport,
    UsageCounters,
)

LAST_INSTANT = 253_402_300_799
MAX_COUNT = 2**53
MAX_INTERVAL_SECONDS = 86_400.0
MAX_NAME_CHARACTERS = 256
MAX_REASONS = 64
MAX_BACKENDS = 10_000

HISTORY_SECONDS = 7 * 86_400.0
"""How long a replica that is no more is remembered, for the sake of its usage counters."""


class ReportAck(msgspec.Struct, frozen=True):
    """`newest_snapshot_version` is what the replica should be serving, 0 when nothing was published."""

    newest_snapshot_version: int


class EjectionRow(msgspec.Struct, frozen=True):
    path: EjectionPath
    reason: EjectionReason
    until: datetime.datetime | None


class BackendRow(msgspec.Struct, frozen=True):
    backend_id: str
    provider: str
    model: str
    healthy: bool
    ejected: EjectionRow | None
    inflight: int
    gate: GateView | None


class ReplicaRow(msgspec.Struct, frozen=True):
    replica: str
    host: str
    version: str
    snapshot_version: int
    state: ReplicaState
    behind_since: datetime.datetime | None
    started_at: datetime.datetime
    reported_at: datetime.datetime
    backends: tuple[BackendRow, ...]
    usage: UsageCounters


class FleetAnswer(msgspec.Struct, frozen=True):
    """`newest_*` are null until a first snapshot was published."""

    config_poll_seconds: float
    health_report_interval_seconds: float
    newest_snapshot_version: int | None
    newest_snapshot_age_seconds: float | None
    replicas: tuple[ReplicaRow, ...]
    partition_suspected: tuple[Partition, ...]


async def take_report(session: AsyncSession, report: HealthReport) -> ReportAck:
    """Keep the report in place of the replica's last one. Raises `Invalid`."""
    _check(report)
    now = await rows.now(session)
    before = await rows.unreachable_before(session, report.replica)
    await rows.keep_report(session, report, fleet.still_unreachable(before, report, now), now)
    await rows.count_rejections(session, report.replica, report.unattributed, now)
    newest = await rows.newest_publication(session)
    return ReportAck(newest.version if newest else 0)


async def describe(
    session: AsyncSession, config_poll_seconds: float, health_report_interval_seconds: float
) -> FleetAnswer:
    """The fleet now. The two durations are answered while no replica has reported its own."""
    now = await rows.now(session)
    listed = [
        known
        for known in await rows.reported_since(session, now - HISTORY_SECONDS)
        if fleet.is_listed(known, now)
    ]
    newest = await rows.newest_publication(session)
    reports = [known.report for known in listed]
    polls = [report.config_poll_seconds for report in reports]
    intervals = [report.health_report_interval_seconds for report in reports]
    return FleetAnswer(
        config_poll_seconds=max(polls, default=config_poll_seconds),
        health_report_interval_seconds=max(intervals, default=health_report_interval_seconds),
        newest_snapshot_version=newest.version if newest else None,
        newest_snapshot_age_seconds=round(max(0.0, now - newest.at), 3) if newest else None,
        replicas=await _judged(session, listed, newest, now),
        partition_suspected=fleet.partitions(listed, now),
    )


async def usage_gaps(session: AsyncSession) -> tuple[UsageGap, ...]:
    """The replicas of the last 7 days some of whose usage is unaccounted for, for `/admin/health`."""
    now = await rows.now(session)
    return fleet.usage_gaps(await rows.reported_since(session, now - HISTORY_SECONDS), now)


async def forget_old(session: AsyncSession) -> None:
    """Drop what is remembered of replicas that were last heard of more than 7 days ago."""
    await rows.forget_before(session, await rows.now(session) - HISTORY_SECONDS)


async def _judged(
    session: AsyncSession, listed: list[Reported], newest: Publication | None, now: float
) -> tuple[ReplicaRow, ...]:
    version = newest.version if newest else 0
    after = await rows.first_after(session, (known.report.snapshot_version for known in listed))
    found = []
    for known in listed:
        missing_since = after.get(known.report.snapshot_version, newest.at if newest else None)
        found.append(_row(known, fleet.judge(known, version, missing_since, now)))
    return tuple(sorted(found, key=lambda row: (row.host, row.replica)))


def _row(known: Reported, verdict: fleet.Verdict) -> ReplicaRow:
    report = known.report
    return ReplicaRow(
        replica=report.replica,
        host=report.host,
        version=report.version,
        snapshot_version=report.snapshot_version,
        state=verdict.state,
        behind_since=None if verdict.behind_since is None else _instant(verdict.behind_since),
        started_at=_instant(report.started_at),
        reported_at=_instant(known.reported_at),
        backends=tuple(_backend(backend) for backend in report.backends),
        usage=report.usage,
    )


def _backend(view: BackendView) -> BackendRow:
    ejected = view.ejected
    return BackendRow(
        backend_id=view.backend_id,
        provider=view.provider,
        model=view.model,
        healthy=view.healthy,
        ejected=None
        if ejected is None
        else EjectionRow(
            ejected.path, ejected.reason, None if ejected.until is None else _instant(ejected.until)
        ),
        inflight=view.inflight,
        gate=view.gate,
    )


def _instant(unix_seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(unix_seconds, datetime.UTC)


def _check(report: HealthReport) -> None:
    """Refuse what could not be shown or added up later."""
    for field in ("replica", "host", "version"):
        length = len(getattr(report, field))
        if length > MAX_NAME_CHARACTERS or (field == "replica" and not length):
            raise _invalid(field, f"must have 1 to {MAX_NAME_CHARACTERS} characters")
    for field in ("config_poll_seconds", "health_report_interval_seconds"):
        if not 0 < getattr(report, field) <= MAX_INTERVAL_SECONDS:
            raise _invalid(field, f"must be above 0 and at most {MAX_INTERVAL_SECONDS:.0f}")
    _within("started_at", report.started_at, LAST_INSTANT)
    _within("snapshot_version", report.snapshot_version, 2**63 - 1)
    for field in ("served", "stored", "queued", "spooled", "dropped"):
        _within(f"usage.{field}", getattr(report.usage, field), MAX_COUNT)
    _check_rejections(report.unattributed)
    if len(report.backends) > MAX_BACKENDS:
        raise _invalid("backends", f"must be at most {MAX_BACKENDS}")
    for index, backend in enumerate(report.backends):
        if backend.ejected is not None and backend.ejected.until is not None:
            _within(f"backends[{index}].ejected.until", backend.ejected.until, LAST_INSTANT)


def _check_rejections(rejected: dict[str, int]) -> None:
    if len(rejected) > MAX_REASONS:
        raise _invalid("unattributed", f"must have at most {MAX_REASONS} reasons")
    for reason, count in rejected.items():
        if not reason or len(reason) > MAX_NAME_CHARACTERS or "\x00" in reason:
            raise _invalid("unattributed", f"a reason must have 1 to {MAX_NAME_CHARACTERS} characters")
        _within(f"unattributed.{reason}", count, MAX_COUNT)


def _within(field: str, value: float, high: float) -> None:
    if math.isnan(value) or not 0 <= value <= high:
        raise _invalid(field, f"must be between 0 and {high:.0f}")


def _invalid(field: str, message: str) -> Invalid:
    return Invalid("invalid_report", f"{field} {message}", field)
