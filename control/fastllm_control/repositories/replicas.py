"""SQL of the fleet: the replicas' last reports, what they turned away, what was published when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from fastllm_control.fleet import Publication, Reported
from fastllm_shared.health import HealthReport, decode_report, encode_report

_NOW = text("SELECT extract(epoch FROM clock_timestamp())::double precision")
_UNREACHABLE = text("SELECT unreachable FROM replicas WHERE replica = :replica FOR NO KEY UPDATE")
_KEEP = text(
    "INSERT INTO replicas (replica, seen_at, reported_at, report, unreachable)"
    " VALUES (:replica, to_timestamp(:now), to_timestamp(:now), :report, :unreachable)"
    " ON CONFLICT (replica) DO UPDATE SET seen_at = excluded.seen_at, reported_at = excluded.reported_at,"
    " report = excluded.report, unreachable = excluded.unreachable"
)
_REJECTED = text(
    "INSERT INTO gateway_rejections (minute, replica, reason, count)"
    " SELECT date_trunc('minute', to_timestamp(:now)), :replica, reason, counted"
    " FROM unnest(CAST(:reasons AS text[]), CAST(:counts AS bigint[])) AS batch (reason, counted)"
    " ON CONFLICT (minute, replica, reason, key_prefix)"
    " DO UPDATE SET count = gateway_rejections.count + excluded.count"
)
_REPORTED = text(
    "SELECT report, extract(epoch FROM reported_at)::double precision AS reported_at, unreachable,"
    " events_stored, highest_sequence FROM replicas"
    " WHERE report IS NOT NULL AND reported_at >= to_timestamp(:since) ORDER BY replica"
)
_NEWEST = text(
    "SELECT version, extract(epoch FROM at)::double precision AS at FROM published_snapshots"
    " ORDER BY version DESC LIMIT 1"
)
_COMMITTED = text(
    # A version is made of the microseconds at which it was committed.
    "SELECT version, least(version / 1000000.0, extract(epoch FROM clock_timestamp()))::double precision"
    " AS at FROM config"
)
_FIRST_AFTER = text(
    "SELECT held.version, extract(epoch FROM (SELECT p.at FROM published_snapshots p"
    " WHERE p.version > held.version ORDER BY p.version LIMIT 1))::double precision AS at"
    " FROM unnest(CAST(:versions AS bigint[])) AS held (version)"
)
_FORGET = text("DELETE FROM replicas WHERE seen_at < to_timestamp(:before)")

_decode_unreachable = msgspec.json.Decoder(dict[str, float]).decode


async def now(session: AsyncSession) -> float:
    """Unix seconds of the database's clock, which is the one that all control planes share."""
    return float((await session.execute(_NOW)).scalar_one())


async def unreachable_before(session: AsyncSession, replica: str) -> dict[str, float]:
    """What its last report called unreachable, since when; locks the replica's row if there is one."""
    found = (await session.execute(_UNREACHABLE, {"replica": replica})).scalar()
    return {} if found is None else _decode_unreachable(found)


async def keep_report(
    session: AsyncSession, report: HealthReport, unreachable: Mapping[str, float], at: float
) -> None:
    """Replace the replica's report."""
    values = {
        "replica": report.replica,
        "now": at,
        "report": encode_report(report).decode(),
        "unreachable": msgspec.json.encode(unreachable).decode(),
    }
    await session.execute(_KEEP, values)


async def count_rejections(
    session: AsyncSession, replica: str, rejected: Mapping[str, int], at: float
) -> None:
    """Add to the minute's counts of requests that belong to no authenticated caller."""
    reasons = sorted(reason for reason, count in rejected.items() if count)
    if reasons:
        counts = [rejected[reason] for reason in reasons]
        values = {"now": at, "replica": replica, "reasons": reasons, "counts": counts}
        await session.execute(_REJECTED, values)


async def reported_since(session: AsyncSession, since: float) -> list[Reported]:
    """Every replica that has reported at or after `since`."""
    return [_reported(row) for row in await session.execute(_REPORTED, {"since": since})]


async def newest_publication(session: AsyncSession) -> Publication | None:
    """The newest version that is out; the newest committed one where nobody recorded publishing any."""
    for statement in (_NEWEST, _COMMITTED):
        row = (await session.execute(statement)).one_or_none()
        if row is not None:
            return Publication(row.version, row.at)
    return None


async def first_after(session: AsyncSession, versions: Iterable[int]) -> dict[int, float]:
    """For each version, when the first later one came out, where one did."""
    held: Sequence[int] = sorted(set(versions))
    found = await session.execute(_FIRST_AFTER, {"versions": held})
    return {row.version: row.at for row in found if row.at is not None}


async def forget_before(session: AsyncSession, before: float) -> None:
    """Drop the replicas that have not been heard of since `before` (Unix seconds)."""
    await session.execute(_FORGET, {"before": before})


def _reported(row: Any) -> Reported:
    return Reported(
        report=decode_report(row.report),
        reported_at=row.reported_at,
        unreachable=_decode_unreachable(row.unreachable),
        events_stored=row.events_stored,
        highest_sequence=row.highest_sequence,
    )
