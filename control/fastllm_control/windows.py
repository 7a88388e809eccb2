"""The window that a budget is in: calendar windows of its zone, or rolling ones from a given instant."""

from __future__ import annotations

import calendar
import datetime
from typing import Literal

from fastllm_shared import conditions

Window = Literal["daily", "weekly", "monthly"]

_DAYS: dict[Window, int] = {"daily": 1, "weekly": 7, "monthly": 31}


def zone_of(name: str) -> datetime.tzinfo:
    """The zone of an IANA name. Raises `ValueError`."""
    zone = conditions.zone_of(name)
    if zone is None:
        raise ValueError(f"unknown time zone {name!r}")
    return zone


def window_around(
    now: datetime.datetime, window: Window, zone: datetime.tzinfo, starts_at: datetime.datetime | None = None
) -> tuple[datetime.datetime, datetime.datetime]:
    """Start (inclusive) and end (exclusive), in UTC, of the window that `now` lies in.

    Before `starts_at` it is the first window.
    """
    if starts_at is not None:
        return _rolling(now, window, starts_at.astimezone(zone))
    local = now.astimezone(zone)
    midnight = datetime.datetime.combine(local.date(), datetime.time(), zone)
    if window == "weekly":
        midnight -= datetime.timedelta(days=local.weekday())
    elif window == "monthly":
        midnight = midnight.replace(day=1)
    return _utc(midnight), _utc(_after(midnight, window, 1))


def _rolling(
    now: datetime.datetime, window: Window, first: datetime.datetime
) -> tuple[datetime.datetime, datetime.datetime]:
    elapsed = max(0, (now - first).days)
    # A guess that is never too high, since a window with a day of 25 hours in it is longer than its days.
    count = max(0, elapsed // _DAYS[window] - 1)
    while _utc(_after(first, window, count + 1)) <= now:
        count += 1
    return _utc(_after(first, window, count)), _utc(_after(first, window, count + 1))


def _after(first: datetime.datetime, window: Window, count: int) -> datetime.datetime:
    """`count` windows later by the zone's own calendar, so that days of 23 and 25 hours are days."""
    if count == 0:  # arithmetic would forget which of two equal wall times it is
        return first
    if window != "monthly":
        return first + datetime.timedelta(days=_DAYS[window] * count)
    months = first.year * 12 + first.month - 1 + count
    year, month = divmod(months, 12)
    last = calendar.monthrange(year, month + 1)[1]
    return first.replace(year=year, month=month + 1, day=min(first.day, last), fold=0)


def _utc(moment: datetime.datetime) -> datetime.datetime:
    return moment.astimezone(datetime.UTC)
