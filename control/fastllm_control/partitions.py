"""The weekly partitions of `usage_events`, made ahead of time, and how an event's id stands for its time.

A week runs from Monday to Monday, UTC. What falls into no week (a replica whose clock is far off, or a week
that could not be made in time) lands in the default partition and is moved when its week is made, so that a
late or failed turn here costs nothing but a move.
"""

from __future__ import annotations

import datetime

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from fastllm_control.advisory_locks import AdvisoryLock, take

CLOCK_TOLERANCE = datetime.timedelta(days=1)
"""How far an event's `at` may lie from the time in its id: rows are found through their ids. A time beyond
that is drawn in when the event is stored."""

WEEK = datetime.timedelta(days=7)
WEEKS_AHEAD = 2
FIRST_MONDAY = datetime.datetime(1970, 1, 5, tzinfo=datetime.UTC)
DEFAULT = "usage_events_default"

_EXISTING = text(
    "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
    " WHERE i.inhparent = 'usage_events'::regclass"
)


def week_of(at: datetime.datetime) -> datetime.datetime:
    """The Monday, 00:00 UTC, of the week that `at` lies in."""
    return FIRST_MONDAY + (at - FIRST_MONDAY) // WEEK * WEEK


def name_of(monday: datetime.datetime) -> str:
    return f"usage_events_{monday:%Y%m%d}"


def lowest_id(at: datetime.datetime) -> str:
    """The smallest id whose 48 bits of milliseconds are those of `at`; before 1970, the smallest of all."""
    millis = max(
        0, (at - datetime.datetime.fromtimestamp(0, datetime.UTC)) // datetime.timedelta(milliseconds=1)
    )
    digits = f"{millis:012x}"
    return f"{digits[:8]}-{digits[8:]}-0000-0000-000000000000"


async def ensure(session: AsyncSession, now: datetime.datetime, patience_seconds: float = 2.0) -> list[str]:
    """Make the partitions of this week and of the next ones; returns the names of those it made.

    Within the caller's transaction. Gives up rather than make readers wait behind it for longer than
    `patience_seconds` for its locks.
    """
    wanted = [week_of(now) + n * WEEK for n in range(WEEKS_AHEAD + 1)]
    if not await _missing(session, wanted):
        return []
    await take(session, AdvisoryLock.PARTITIONS)
    patience = f"{patience_seconds * 1000:.0f}ms"
    await session.execute(text("SELECT set_config('lock_timeout', :patience, true)"), {"patience": patience})
    missing = await _missing(session, wanted)
    for monday in missing:
        await _make(session, monday)
    return [name_of(monday) for monday in missing]


async def _missing(session: AsyncSession, wanted: list[datetime.datetime]) -> list[datetime.datetime]:
    existing = set((await session.execute(_EXISTING)).scalars())
    return [monday for monday in wanted if name_of(monday) not in existing]


async def _make(session: AsyncSession, monday: datetime.datetime) -> None:
    """Make a table apart and attach it: unlike `PARTITION OF`, that keeps no one from the whole."""
    name, low, high = name_of(monday), lowest_id(monday), lowest_id(monday + WEEK)
    strayed = f"WHERE id >= '{low}' AND id < '{high}'"
    statements = (
        f"CREATE TABLE {name} (LIKE usage_events INCLUDING ALL)",
        # Against rows that stray in between the move and the attachment; attaching takes it anyway.
        f"LOCK TABLE {DEFAULT} IN ACCESS EXCLUSIVE MODE",
        f"WITH moved AS (DELETE FROM {DEFAULT} {strayed} RETURNING *) INSERT INTO {name} SELECT * FROM moved",  # noqa: S608
        f"ALTER TABLE usage_events ATTACH PARTITION {name} FOR VALUES FROM ('{low}') TO ('{high}')",
    )
    for statement in statements:
        await session.execute(text(statement))
