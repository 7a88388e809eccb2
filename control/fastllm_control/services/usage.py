"""Reading usage back: single events, and sums by group."""

from __future__ import annotations

import datetime
from typing import Any, get_args
from uuid import UUID

import msgspec
from sqlalchemy import Row
from sqlalchemy.ext.asyncio import AsyncSession

from fastllm_control.errors import Invalid
from fastllm_control.repositories import usage_reading as reading
from fastllm_control.repositories.usage_reading import Filters, GroupBy
from fastllm_shared.usage import CostSource, Refusal

DEFAULT_SUMMARY = datetime.timedelta(days=30)
EARLIEST = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
LATEST = datetime.datetime(9999, 1, 1, tzinfo=datetime.UTC)
REFUSALS: tuple[Refusal, ...] = get_args(Refusal)


class EventRow(msgspec.Struct, frozen=True):
    """One request as it was stored. `model` is the name as asked for; unknown is null, never 0."""

    id: UUID
    at: datetime.datetime
    principal: str | None
    key_prefix: str | None
    model: str | None
    provider_model: str | None
    provider: str | None
    backend_id: UUID | None
    rule: int | None
    tag: str | None
    endpoint: str
    status: int
    refusal: Refusal | None
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    reasoning_tokens: int | None
    usage_reported: bool
    cost_micros: int | None
    cost_source: CostSource | None
    stream: bool
    attempts: int
    ttft_ms: float | None
    duration_ms: float
    replica: str
    request_id: str


class Sums(msgspec.Struct, frozen=True, kw_only=True):
    """What was counted and added up.

    `requests` are all of them, refused ones too; `errors` those that were not refused and answered with 4xx
    or 5xx, but for the client's own going (`cancelled`). Sums are over what was known, and null when nothing
    was. `unpriced_requests` and `unknown_usage_requests` count what the sums leave out.
    """

    requests: int
    errors: int
    cancelled: int
    refusals: dict[str, int]
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    reasoning_tokens: int | None
    cost_micros: int | None
    unpriced_requests: int
    unknown_usage_requests: int
    p50_ms: float | None
    p95_ms: float | None


class GroupRow(Sums, frozen=True, kw_only=True):
    """`group` is null for the requests that have none (no tag, say)."""

    group: str | None


class Summary(msgspec.Struct, frozen=True):
    """`truncated`: there are more groups than were asked for."""

    rows: tuple[GroupRow, ...]
    truncated: bool
    since: datetime.datetime
    until: datetime.datetime


async def events(session: AsyncSession, filters: Filters, after: UUID | None, limit: int) -> list[EventRow]:
    """Up to `limit` events, newest first, older than `after`."""
    return [EventRow(*row) for row in await reading.events(session, _in_utc(filters), after, limit)]


async def summary(
    session: AsyncSession, filters: Filters, group_by: GroupBy, limit: int, now: datetime.datetime
) -> Summary:
    """Sums by group; `since` defaults to 30 days before `until`, and that to `now`."""
    filters = completed(filters, now, DEFAULT_SUMMARY)
    found = await reading.grouped(session, filters, group_by, limit + 1)
    rows = tuple(GroupRow(group=row.label, **sums_of(row)) for row in found[:limit])
    since, until = bounds_of(filters)
    return Summary(rows=rows, truncated=len(found) > limit, since=since, until=until)


def sums_of(row: Row[Any]) -> dict[str, Any]:
    """The fields of `Sums` out of a row of them."""
    return {
        "requests": row.requests,
        "errors": row.errors,
        "cancelled": row.cancelled,
        "refusals": {kind: getattr(row, f"refused_{kind}") for kind in REFUSALS},
        "prompt_tokens": _known(row.prompt_tokens, row.consuming),
        "completion_tokens": _known(row.completion_tokens, row.consuming),
        "cached_tokens": _known(row.cached_tokens, row.consuming),
        "reasoning_tokens": _known(row.reasoning_tokens, row.consuming),
        "cost_micros": None if row.cost_micros is None else int(row.cost_micros),
        "unpriced_requests": row.unpriced_requests,
        "unknown_usage_requests": row.unknown_usage_requests,
        "p50_ms": None if row.p50_ms is None else round(row.p50_ms, 3),
        "p95_ms": None if row.p95_ms is None else round(row.p95_ms, 3),
    }


def _known(total: Any, consuming: int) -> int | None:
    """A sum of tokens: 0 where no request can have consumed any, null where none of those told."""
    if total is None:
        return None if consuming else 0
    return int(total)


def completed(filters: Filters, now: datetime.datetime, width: datetime.timedelta) -> Filters:
    """`filters` with both ends of the range; raises `Invalid` when it does not run forward."""
    asked = _in_utc(filters)
    until = asked.until or now
    since = asked.since or max(EARLIEST, until - width)
    if since >= until:
        raise Invalid("invalid_value", "since must lie before until", "since")
    return msgspec.structs.replace(asked, since=since, until=until)


def bounds_of(filters: Filters) -> tuple[datetime.datetime, datetime.datetime]:
    """Both ends of a completed range."""
    if filters.since is None or filters.until is None:
        raise ValueError("the range was not completed")
    return filters.since, filters.until


def _in_utc(filters: Filters) -> Filters:
    """A time without a zone is taken for UTC; one outside `EARLIEST`…`LATEST` for the nearer of them."""
    return msgspec.structs.replace(filters, since=_zoned(filters.since), until=_zoned(filters.until))


def _zoned(instant: datetime.datetime | None) -> datetime.datetime | None:
    if instant is None:
        return None
    zoned = instant if instant.tzinfo is not None else instant.replace(tzinfo=datetime.UTC)
    return min(max(zoned, EARLIEST), LATEST)
