"""Windows of budgets: days of 23 and 25 hours, ends of months, zones at both ends of the world."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fastllm_control.windows import Window, window_around, zone_of

UTC = datetime.UTC
ZONES = (
    "UTC",
    "Europe/Brussels",
    "America/Sao_Paulo",
    "America/Havana",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Etc/GMT-14",
    "Etc/GMT+12",
    "Asia/Kathmandu",
)
INSTANTS = st.integers(946_684_800, 2_840_140_800).map(
    lambda second: datetime.datetime.fromtimestamp(second, UTC)
)
WINDOWS = st.sampled_from(("daily", "weekly", "monthly"))


def at(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text).astimezone(UTC)


def window(now: str, kind: Window, zone: str = "UTC", start: str | None = None) -> tuple[str, str]:
    found = window_around(at(now), kind, zone_of(zone), None if start is None else at(start))
    assert all(moment.tzinfo is UTC for moment in found)
    first, last = (moment.isoformat().removesuffix(":00+00:00") for moment in found)
    return first, last


@pytest.mark.parametrize(
    ("now", "kind", "zone", "expected"),
    [
        ("2026-03-15T12:00Z", "daily", "UTC", ("2026-03-15T00:00", "2026-03-16T00:00")),
        # The end is exclusive, to the microsecond.
        ("2026-03-15T23:59:59.999999+00:00", "daily", "UTC", ("2026-03-15T00:00", "2026-03-16T00:00")),
        ("2026-03-16T00:00Z", "daily", "UTC", ("2026-03-16T00:00", "2026-03-17T00:00")),
        # Weeks begin on Monday.
        ("2026-03-15T12:00Z", "weekly", "UTC", ("2026-03-09T00:00", "2026-03-16T00:00")),
        ("2026-03-16T00:00Z", "weekly", "UTC", ("2026-03-16T00:00", "2026-03-23T00:00")),
        ("2026-01-01T00:00Z", "weekly", "UTC", ("2025-12-29T00:00", "2026-01-05T00:00")),
        ("2024-02-29T12:00Z", "monthly", "UTC", ("2024-02-01T00:00", "2024-03-01T00:00")),
        ("2026-12-31T23:00Z", "monthly", "UTC", ("2026-12-01T00:00", "2027-01-01T00:00")),
        # 23 and 25 hours.
        ("2026-03-29T12:00Z", "daily", "Europe/Brussels", ("2026-03-28T23:00", "2026-03-29T22:00")),
        ("2026-10-25T12:00Z", "daily", "Europe/Brussels", ("2026-10-24T22:00", "2026-10-25T23:00")),
        ("2026-10-20T12:00Z", "monthly", "Europe/Brussels", ("2026-09-30T22:00", "2026-10-31T23:00")),
        # Midnight that does not exist, and midnight that comes twice: the first one counts, in both hours.
        ("2018-11-04T12:00Z", "daily", "America/Sao_Paulo", ("2018-11-04T03:00", "2018-11-05T02:00")),
        ("2026-11-01T04:30Z", "daily", "America/Havana", ("2026-11-01T04:00", "2026-11-02T05:00")),
        ("2026-11-01T05:30Z", "daily", "America/Havana", ("2026-11-01T04:00", "2026-11-02T05:00")),
        # A day that was left out.
        ("2011-12-30T11:00Z", "daily", "Pacific/Apia", ("2011-12-30T10:00", "2011-12-31T10:00")),
        # Today is tomorrow there, and yesterday.
        ("2026-03-31T10:00Z", "monthly", "Etc/GMT-14", ("2026-03-31T10:00", "2026-04-30T10:00")),
        ("2026-03-31T09:59Z", "monthly", "Etc/GMT-14", ("2026-02-28T10:00", "2026-03-31T10:00")),
        ("2026-04-01T11:59Z", "monthly", "Etc/GMT+12", ("2026-03-01T12:00", "2026-04-01T12:00")),
    ],
)
def test_calendar_windows(now: str, kind: Window, zone: str, expected: tuple[str, str]) -> None:
    assert window(now, kind, zone) == expected


@pytest.mark.parametrize(
    ("now", "kind", "zone", "start", "expected"),
    [
        ("2026-03-01T12:00Z", "daily", "UTC", "2026-02-27T15:00Z", ("2026-02-28T15:00", "2026-03-01T15:00")),
        # Before the first window it is the first.
        ("2026-01-01T00:00Z", "weekly", "UTC", "2026-02-27T15:00Z", ("2026-02-27T15:00", "2026-03-06T15:00")),
        # From the 31st: the last of shorter months, and the 31st again.
        (
            "2026-02-15T00:00Z",
            "monthly",
            "UTC",
            "2026-01-31T00:00Z",
            ("2026-01-31T00:00", "2026-02-28T00:00"),
        ),
        (
            "2026-03-15T00:00Z",
            "monthly",
            "UTC",
            "2026-01-31T00:00Z",
            ("2026-02-28T00:00", "2026-03-31T00:00"),
        ),
        (
            "2024-03-15T00:00Z",
            "monthly",
            "UTC",
            "2023-01-31T00:00Z",
            ("2024-02-29T00:00", "2024-03-31T00:00"),
        ),
        (
            "2025-03-01T00:00Z",
            "monthly",
            "UTC",
            "2024-02-29T00:00Z",
            ("2025-02-28T00:00", "2025-03-29T00:00"),
        ),
        # 31 days and a half hour after the start of a month that is 31 days and an hour long.
        (
            "2025-10-31T22:30Z",
            "monthly",
            "Europe/Brussels",
            "2025-09-30T22:00Z",
            ("2025-09-30T22:00", "2025-10-31T23:00"),
        ),
        # The same time of day on both sides of a change.
        (
            "2026-03-29T12:00Z",
            "daily",
            "Europe/Brussels",
            "2026-03-01T09:00+01:00",
            ("2026-03-29T07:00", "2026-03-30T07:00"),
        ),
        # From the second of two equal wall times.
        (
            "2026-10-25T01:40Z",
            "daily",
            "Europe/Brussels",
            "2026-10-25T01:30Z",
            ("2026-10-25T01:30", "2026-10-26T01:30"),
        ),
    ],
)
def test_rolling_windows(now: str, kind: Window, zone: str, start: str, expected: tuple[str, str]) -> None:
    assert window(now, kind, zone, start) == expected


@given(now=INSTANTS, start=st.none() | INSTANTS, kind=WINDOWS, zone=st.sampled_from(ZONES))
@example(now=at("2025-10-31T22:30Z"), start=at("2025-09-30T22:00Z"), kind="monthly", zone="Europe/Brussels")
def test_now_lies_in_its_window_and_windows_join(
    now: datetime.datetime, start: datetime.datetime | None, kind: Window, zone: str
) -> None:
    tz = zone_of(zone)
    first, last = window_around(now, kind, tz, start)
    if start is not None and now < start:
        assert first == start
        now = start
    assert first <= now < last
    assert window_around(last, kind, tz, start)[0] == last
    assert window_around(first, kind, tz, start) == (first, last)
    longest = {"daily": 1, "weekly": 7, "monthly": 31}[kind]
    assert datetime.timedelta() < last - first <= datetime.timedelta(days=longest, hours=2)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "localtime",
        "right/Europe/Brussels",
        "Mars/Olympus",
        "../../etc/passwd",
        "/etc/passwd",
        "Europe",
        "a\0b",
        "é",
    ],
)
def test_what_is_no_zone(name: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (whatever it says: the message is ours or the library's)
        zone_of(name)


def test_utc_needs_no_data() -> None:
    assert zone_of("UTC") is UTC
