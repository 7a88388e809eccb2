"""Usage over time, for charts.

Rows older than the retention will be read from the hourly rollups; nothing is rolled up so far.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator
from typing import Any

import msgspec
from sqlalchemy import Row
from sqlalchemy.ext.asyncio import AsyncSession

from fastllm_control.repositories import usage_reading as reading
from fastllm_control.repositories.usage_reading import Filters
from fastllm_control.services.usage import REFUSALS, Sums, bounds_of, completed, sums_of

DEFAULT_SERIES = datetime.timedelta(hours=24)
MAX_POINTS = 720


class Point(Sums, frozen=True, kw_only=True):
    """One bucket from `at`. `refused_unattributed` counts what was turned away before anybody was known; it
    is null where the question is about a model or a principal."""

    at: datetime.datetime
    refused_unattributed: int | None
    rolled_up: bool = False


class Series(msgspec.Struct, frozen=True):
    bucket_seconds: int
    points: tuple[Point, ...]


async def timeseries(
    session: AsyncSession, filters: Filters, bucket_seconds: int, now: datetime.datetime
) -> Series:
    """Every bucket of the range, at most 720 of them: the bucket is widened in whole multiples until so."""
    filters = completed(filters, now, DEFAULT_SERIES)
    since, until = bounds_of(filters)
    bucket = fitting_bucket(since, until, bucket_seconds)
    found = {int(row.slot): row for row in await reading.by_time(session, filters, bucket)}
    anyone = filters.principal is None and filters.model is None
    refused = await reading.rejections_by_time(session, since, until, bucket) if anyone else None
    return Series(bucket, tuple(_points(since, until, bucket, found, refused)))


def fitting_bucket(since: datetime.datetime, until: datetime.datetime, bucket_seconds: int) -> int:
    """`bucket_seconds`, or a multiple of it of which at most 720 cover the range."""
    if len(_slots(since, until, bucket_seconds)) <= MAX_POINTS:
        return bucket_seconds
    whole_buckets = MAX_POINTS - 2  # the first and the last may be cut
    width = math.ceil((until - since).total_seconds())
    return bucket_seconds * -(-width // (whole_buckets * bucket_seconds))


def _slots(since: datetime.datetime, until: datetime.datetime, bucket: int) -> range:
    first = int(since.timestamp() // bucket)
    return range(first, max(first, int(-(-until.timestamp() // bucket))))


def _points(
    since: datetime.datetime,
    until: datetime.datetime,
    bucket: int,
    found: dict[int, Row[Any]],
    refused: dict[int, int] | None,
) -> Iterator[Point]:
    slots = _slots(since, until, bucket)
    # A minute of rejections that began before the range still belongs to its first point.
    early = sum(count for slot, count in (refused or {}).items() if slot < slots.start)
    for slot in slots:
        unattributed = (
            None if refused is None else refused.get(slot, 0) + (early if slot == slots.start else 0)
        )
        at = datetime.datetime.fromtimestamp(slot * bucket, datetime.UTC)
        sums = sums_of(found[slot]) if slot in found else _nothing()
        yield Point(at=at, refused_unattributed=unattributed, **sums)


def _nothing() -> dict[str, Any]:
    """A bucket without requests: nothing is unknown of it."""
    counted = ("requests", "errors", "cancelled", "unpriced_requests", "unknown_usage_requests")
    summed = ("prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens", "cost_micros")
    zeros: dict[str, Any] = dict.fromkeys((*counted, *summed), 0)
    return {**zeros, "refusals": dict.fromkeys(REFUSALS, 0), "p50_ms": None, "p95_ms": None}
