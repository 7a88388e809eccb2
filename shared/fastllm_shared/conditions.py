"""When a rule applies: the conditions that operators write, compiled once and asked per request. Pure.

`problem` judges conditions when they are written, `Compiled` answers for a request. What cannot be known of a
request (no estimate of its prompt, no engine to look at) fulfils no condition that asks for it; a principal
without a budget has used 0 % of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, tzinfo
from typing import Final, Protocol
from zoneinfo import ZoneInfo

import msgspec

from fastllm_shared.snapshot import Conditions

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_RANGES: Final = (
    ("min_prompt_tokens", "max_prompt_tokens"),
    ("min_max_tokens", "max_max_tokens"),
    ("min_budget_used_percent", "max_budget_used_percent"),
)
_CLOCK: Final = ("after", "before", "days")
_NO_ZONES: Final = frozenset({"localtime", "posixrules", "Factory"})


class Known(Protocol):
    """What conditions can ask of a request: only what they do ask is ever looked at, so that it may be found
    out then. Token figures are estimates; `now_unix` is in seconds.
    `inflight_per_backend` is for who has one figure for all rules, as a dry run has: a proxy looks at each
    rule's own backends."""

    @property
    def principal(self) -> str: ...
    @property
    def roles(self) -> tuple[str, ...]: ...
    @property
    def stream(self) -> bool: ...
    @property
    def now_unix(self) -> float: ...
    @property
    def prompt_tokens(self) -> int | None: ...
    @property
    def max_tokens(self) -> int | None: ...
    @property
    def budget_used_percent(self) -> float | None: ...
    @property
    def inflight_per_backend(self) -> float | None: ...

    def header(self, name: str) -> str | None:
        """The value of the header of that name, which is given in lower case."""
        ...


class Facts(msgspec.Struct, frozen=True):
    """`Known`, written down. Names of headers are in lower case."""

    principal: str
    roles: tuple[str, ...]
    stream: bool
    now_unix: float
    headers: Mapping[str, str] = {}
    prompt_tokens: int | None = None
    max_tokens: int | None = None
    budget_used_percent: float | None = None
    inflight_per_backend: float | None = None

    def header(self, name: str) -> str | None:
        return self.headers.get(name)


class Problem(msgspec.Struct, frozen=True):
    """What is wrong with conditions: `field` is the condition's name, `message` what would be right."""

    field: str
    message: str


def problem(when: Conditions) -> Problem | None:
    """What makes `when` unfit to be stored; shape and bounds of single values are the type's to check."""
    for low, high in _RANGES:
        lowest, highest = getattr(when, low), getattr(when, high)
        if lowest is not None and highest is not None and lowest > highest:
            return Problem(low, f"is above {high}: no request could fulfil both")
    for name in ("principals", "roles", "days", "headers"):
        if getattr(when, name) is not None and not getattr(when, name):
            return Problem(name, "is empty: no request could fulfil it")
    if when.after is not None and when.after == when.before:
        return Problem("before", "is the same time as `after`: leave both out for the whole day")
    if when.timezone is not None and all(getattr(when, name) is None for name in _CLOCK):
        return Problem("timezone", "says in which zone `after`, `before` and `days` are: none is given")
    return _names_problem(when)


def _names_problem(when: Conditions) -> Problem | None:
    if when.timezone is not None and zone_of(when.timezone) is None:
        return Problem("timezone", "not a zone of the IANA database, such as `Europe/Brussels` or `UTC`")
    lowered = [name.lower() for name in when.headers or ()]
    if len(set(lowered)) < len(lowered):
        return Problem("headers", "names a header twice: case does not count")
    if any(value != value.strip(" ") for value in (when.headers or {}).values()):
        return Problem("headers", "a value begins or ends with a blank, which no header that is sent does")
    if when.days is not None and len(set(when.days)) < len(when.days):
        return Problem("days", "names a day twice")
    return None


def zone_of(name: str) -> tzinfo | None:
    """The zone of that name, `None` if there is none. What stands beside the zones in a machine's files is
    none: another machine would read another time from it."""
    if name == "UTC":  # known even where no time zone data is installed
        return UTC
    if name in _NO_ZONES or name.startswith(("right/", "posix/")):
        return None
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):  # a name that is none, or that leads to no zone file
        return None


Holds = Callable[[Known, float | None], bool]
"""Whether one condition holds, given the facts and the in-flight figure of the rule's backends."""


class Compiled:
    """The conditions of one rule, ready to be asked. Immutable."""

    __slots__ = ("_checks", "asks_inflight")

    def __init__(self, when: Conditions) -> None:
        self._checks: tuple[tuple[str, Holds], ...] = tuple(_checks(when))
        self.asks_inflight = when.max_inflight_per_backend is not None

    def failed(self, facts: Known, inflight: float | None) -> str | None:
        """The first condition that does not hold, in the order in which they are declared; `None`: all
        hold."""
        for name, holds in self._checks:
            if not holds(facts, inflight):
                return name
        return None


def _checks(when: Conditions) -> Iterator[tuple[str, Holds]]:
    """Only those that are set: most rules have one or two."""
    if when.principals is not None:
        yield "principals", _principal_in(frozenset(when.principals))
    if when.roles is not None:
        yield "roles", _role_in(frozenset(when.roles))
    for low, high in _RANGES[:2]:
        fact = low.removeprefix("min_")
        yield from _bounds(when, low, high, _figure(fact))
    if when.stream is not None:
        yield "stream", _streams(when.stream)
    if when.headers is not None:
        yield "headers", _headers({name.lower(): value for name, value in when.headers.items()})
    yield from _bounds(when, *_RANGES[2], lambda facts: facts.budget_used_percent or 0.0)
    if when.max_inflight_per_backend is not None:
        yield "max_inflight_per_backend", _at_most(when.max_inflight_per_backend)
    yield from _clock_checks(when)


def _principal_in(names: frozenset[str]) -> Holds:
    return lambda facts, _: facts.principal in names


def _role_in(names: frozenset[str]) -> Holds:
    return lambda facts, _: not names.isdisjoint(facts.roles)


def _streams(wanted: bool) -> Holds:
    return lambda facts, _: facts.stream is wanted


def _headers(wanted: Mapping[str, str]) -> Holds:
    return lambda facts, _: all(facts.header(name) == value for name, value in wanted.items())


def _at_most(most: float) -> Holds:
    return lambda _, inflight: inflight is not None and inflight <= most


def _figure(name: str) -> Callable[[Known], float | None]:
    if name == "prompt_tokens":
        return lambda facts: facts.prompt_tokens
    return lambda facts: facts.max_tokens


def _bounds(
    when: Conditions, low: str, high: str, figure: Callable[[Known], float | None]
) -> Iterator[tuple[str, Holds]]:
    least, most = getattr(when, low), getattr(when, high)
    if least is not None:
        yield low, lambda facts, _: (value := figure(facts)) is not None and value >= least
    if most is not None:
        yield high, lambda facts, _: (value := figure(facts)) is not None and value <= most


def _clock_checks(when: Conditions) -> Iterator[tuple[str, Holds]]:
    """`after` is inclusive, `before` exclusive. Where they wrap midnight, `days` are those on which the span
    begins: Friday from 22:00 to 06:00 reaches into Saturday."""
    if when.after is None and when.before is None and when.days is None:
        return
    # A zone that this machine does not know (older data than the writer's) fulfils nothing.
    zone = zone_of(when.timezone or "UTC")
    start = None if when.after is None else _minutes(when.after)
    end = None if when.before is None else _minutes(when.before)
    wraps = start is not None and end is not None and start > end
    if start is not None:
        yield "after", lambda facts, _: _after(_local(facts, zone), start, end if wraps else None)
    if end is not None and not wraps:
        yield "before", lambda facts, _: (now := _local(facts, zone)) is not None and now[1] < end
    if when.days is not None:
        numbers = frozenset(DAYS.index(day) for day in when.days)
        yield "days", lambda facts, _: _on(_local(facts, zone), numbers, end if wraps else None)


def _local(facts: Known, zone: tzinfo | None) -> tuple[int, int] | None:
    """Day of the week (Monday is 0) and minute of the day, by the wall clock."""
    if zone is None:
        return None
    now = datetime.fromtimestamp(facts.now_unix, zone)
    return now.weekday(), now.hour * 60 + now.minute


def _after(now: tuple[int, int] | None, start: int, wrapped_end: int | None) -> bool:
    return now is not None and (now[1] >= start or (wrapped_end is not None and now[1] < wrapped_end))


def _on(now: tuple[int, int] | None, days: frozenset[int], wrapped_end: int | None) -> bool:
    if now is None:
        return False
    day, minute = now
    began_yesterday = wrapped_end is not None and minute < wrapped_end
    return (day - began_yesterday) % 7 in days


def _minutes(clock: str) -> int:
    hours, _, minutes = clock.partition(":")
    return int(hours) * 60 + int(minutes)
