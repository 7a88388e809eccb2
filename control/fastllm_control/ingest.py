"""Taking in usage: a batch becomes columns that Postgres cannot object to, then rows, once each.

What a proxy says of itself must be right: an id, a status or a duration that cannot be is refused, naming the
event and the field, and the proxy isolates that event. What it repeats of a client or an engine is cleaned
instead, because the request did happen: NUL characters are replaced, long names cut, impossible token
figures become unknown.

Locks are taken in one order by everybody (events by id, keys by id, replicas by name), so that two batches
that share some of them wait for each other and never in a circle.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from fastllm_control.errors import Invalid
from fastllm_control.partitions import CLOCK_TOLERANCE
from fastllm_control.repositories import usage_events as rows
from fastllm_shared.ids import has_uuid_shape
from fastllm_shared.usage import MAX_BATCH_EVENTS, UsageAck, UsageBatch, UsageEvent

MAX_BIGINT = 2**63 - 1
MAX_INT = 2**31 - 1
MAX_NAME_CHARACTERS = 256
LAST_INSTANT = 253_402_300_799
"""The last second of the year 9999, in Unix time: the end of what a date can say here."""

MAX_DURATION_MS = 1e12

_UUID7 = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-7[0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}")

_NAMES = ("principal", "key_prefix", "model", "provider_model", "provider", "tag", "refusal", "cost_source")
_TEXTS = ("replica", "request_id", "endpoint", *_NAMES)
_REFERENCES = ("principal_id", "key_id", "provider_id", "backend_id")
_REPORTED = ("prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens", "cost_micros")
_AS_THEY_ARE = ("usage_reported", "stream")
_BOUNDED: tuple[tuple[str, float, float], ...] = (
    ("status", 100, 599),
    ("sequence", 0, MAX_BIGINT),
    ("rule", 0, MAX_INT),
    ("attempts", 0, MAX_INT),
    ("ttft_ms", 0, MAX_DURATION_MS),
    ("duration_ms", 0, MAX_DURATION_MS),
)

Columns = dict[str, list[Any]]


class Taken(msgspec.Struct, frozen=True):
    """A batch made ready: its columns sorted by event id, and how many events were there twice."""

    columns: Columns
    repeated: int


async def store(session: AsyncSession, batch: UsageBatch) -> UsageAck:
    """Store the events that are new and fold exactly those, within the caller's transaction.

    Raises `Invalid`. Storing a batch again, whole or in part, changes nothing.
    """
    taken = columns_of(batch)
    if not taken.columns["id"]:
        return UsageAck(stored=0, duplicates=0)
    fresh = await rows.insert_new(session, taken.columns)
    # Budgets and hourly sums fold here too, between keys and replicas, from the same fresh groups.
    await rows.touch_keys(session, fresh)
    await rows.count_stored(session, fresh)
    stored = sum(group.events for group in fresh)
    return UsageAck(stored=stored, duplicates=len(batch.events) - stored)


def columns_of(batch: UsageBatch) -> Taken:
    """The batch as one list a column, checked, cleaned, each id once, in the order of ids."""
    if len(batch.events) > MAX_BATCH_EVENTS:
        raise Invalid("invalid_usage", f"at most {MAX_BATCH_EVENTS} events a batch", "events")
    events = batch.events
    ids = _ids(events)
    columns: Columns = {"id": ids, "at": _times(events, ids)}
    for name, low, high in _BOUNDED:
        columns[name] = _bounded(events, name, low, high)
    for name in _REFERENCES:
        columns[name] = _references(events, name)
    for name in _TEXTS:
        columns[name] = _texts(events, name)
    for name in _REPORTED:
        columns[name] = _reported(events, name)
    for name in _AS_THEY_ARE:
        columns[name] = [getattr(event, name) for event in events]
    _forget_sources(columns)
    return _in_order(columns)


def refuse(index: int, field: str, message: str) -> Invalid:
    """The refusal of one event of a batch, by its place and field."""
    where = f"events[{index}].{field}"
    return Invalid("invalid_usage", f"{where} {message}", where)


def _ids(events: Sequence[UsageEvent]) -> list[str]:
    ids = [event.id.lower() for event in events]
    for index, text in enumerate(ids):
        if not _UUID7.fullmatch(text):
            raise refuse(index, "id", "must be a UUID of version 7")
        if _seconds_of(text) > LAST_INSTANT:
            raise refuse(index, "id", "bears a time after the year 9999")
    return ids


def _seconds_of(event_id: str) -> float:
    return int(event_id[:8] + event_id[9:13], 16) / 1000


def _times(events: Sequence[UsageEvent], ids: Sequence[str]) -> list[float]:
    found = []
    tolerance = CLOCK_TOLERANCE.total_seconds()
    for index, (event, event_id) in enumerate(zip(events, ids, strict=True)):
        if not 0 <= event.at <= LAST_INSTANT:
            raise refuse(index, "at", "must be a Unix time between 1970 and the year 9999")
        minted = _seconds_of(event_id)
        earliest = max(0.0, minted - tolerance)
        found.append(min(max(event.at, earliest), minted + tolerance, LAST_INSTANT))
    return found


def _bounded(events: Sequence[UsageEvent], name: str, low: float, high: float) -> list[Any]:
    values = [getattr(event, name) for event in events]
    for index, value in enumerate(values):
        if value is not None and not low <= value <= high:
            raise refuse(index, name, f"must be between {low:.0f} and {high:.0f}")
    return values


def _references(events: Sequence[UsageEvent], name: str) -> list[str | None]:
    values = [getattr(event, name) for event in events]
    known: set[str | None] = {None}
    for index, value in enumerate(values):
        if value not in known:
            if not has_uuid_shape(value):
                raise refuse(index, name, "must be a UUID")
            known.add(value)
    return values


def _texts(events: Sequence[UsageEvent], name: str) -> list[str | None]:
    values: list[str | None] = [getattr(event, name) for event in events]
    distinct = set(values)
    if all(text is None or (len(text) <= MAX_NAME_CHARACTERS and "\x00" not in text) for text in distinct):
        return values
    return [None if text is None else text.replace("\x00", "\ufffd")[:MAX_NAME_CHARACTERS] for text in values]


def _reported(events: Sequence[UsageEvent], name: str) -> list[int | None]:
    values = [getattr(event, name) for event in events]
    return [value if value is not None and 0 <= value <= MAX_BIGINT else None for value in values]


def _forget_sources(columns: Columns) -> None:
    """Where a cost came to be unknown, so is its source."""
    costs = columns["cost_micros"]
    columns["cost_source"] = [
        None if cost is None else source for cost, source in zip(costs, columns["cost_source"], strict=True)
    ]


def _in_order(columns: Columns) -> Taken:
    """Sorted by id, and of events that share an id the first only."""
    ids = columns["id"]
    first: dict[str, int] = {}
    for index, text in enumerate(ids):
        first.setdefault(text, index)
    chosen = [first[text] for text in sorted(first)]
    pick: Callable[[list[Any]], list[Any]] = lambda values: [values[index] for index in chosen]  # noqa: E731
    return Taken({name: pick(values) for name, values in columns.items()}, len(ids) - len(chosen))
