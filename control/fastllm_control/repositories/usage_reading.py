"""SQL that reads usage back. Rows are found through their ids, whose first bits are the time.

Every range of time is both a range of `at`, exactly, and a range of ids, wider by `CLOCK_TOLERANCE` at both
ends, because an event's `at` lies that close to the time in its id: that lets Postgres pass over partitions.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any, Literal, get_args
from uuid import UUID

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from fastllm_control.partitions import CLOCK_TOLERANCE, lowest_id
from fastllm_control.tables.access import Principal
from fastllm_control.tables.configuration import Provider
from fastllm_control.tables.usage import GatewayRejection, UsageEvent
from fastllm_shared.ids import has_uuid_shape
from fastllm_shared.usage import Refusal

GroupBy = Literal["model", "principal", "provider_model", "key", "provider", "tag", "day"]
CANCELLED = 499
BROKEN = 502

Conditions = list[sa.ColumnElement[bool]]

SHOWN = (
    UsageEvent.id,
    UsageEvent.at,
    UsageEvent.principal,
    UsageEvent.key_prefix,
    UsageEvent.model,
    UsageEvent.provider_model,
    UsageEvent.provider,
    UsageEvent.backend_id,
    UsageEvent.rule,
    UsageEvent.tag,
    UsageEvent.endpoint,
    UsageEvent.status,
    UsageEvent.refusal,
    UsageEvent.prompt_tokens,
    UsageEvent.completion_tokens,
    UsageEvent.cached_tokens,
    UsageEvent.reasoning_tokens,
    UsageEvent.usage_reported,
    UsageEvent.cost_micros,
    UsageEvent.cost_source,
    UsageEvent.stream,
    UsageEvent.attempts,
    UsageEvent.ttft_ms,
    UsageEvent.duration_ms,
    UsageEvent.replica,
    UsageEvent.request_id,
)


class Filters(msgspec.Struct, frozen=True):
    """Which events; `None` is no condition. `since` is included, `until` is not. `principal` and `provider`
    are ids or names, `key` an id or a prefix. Times have a zone and lie a day or more from the ends of what
    a `datetime` can say."""

    since: datetime.datetime | None = None
    until: datetime.datetime | None = None
    principal: str | None = None
    key: str | None = None
    model: str | None = None
    provider_model: str | None = None
    provider: str | None = None
    backend_id: UUID | None = None
    tag: str | None = None
    endpoint: str | None = None
    status: int | None = None
    refusal: Refusal | None = None
    stream: bool | None = None
    replica: str | None = None
    request_id: str | None = None


async def events(session: AsyncSession, filters: Filters, after: UUID | None, limit: int) -> Sequence[Any]:
    """Up to `limit` events, newest first, older than the event `after`; columns as in `SHOWN`."""
    query = sa.select(*SHOWN).where(*conditions(filters)).order_by(UsageEvent.id.desc()).limit(limit)
    if after is not None:
        query = query.where(UsageEvent.id < after)
    await _for_reading(session)
    return (await session.execute(query)).all()


async def grouped(
    session: AsyncSession, filters: Filters, group_by: GroupBy, limit: int
) -> Sequence[sa.Row[Any]]:
    """Up to `limit` groups, the one with the most requests first (days in their order); columns `label`,
    then those of `sums`, `p50_ms`, `p95_ms`."""
    label, joined = _label(group_by)
    query = (
        sa.select(label.label("label"), *sums(), *percentiles())
        .select_from(joined)
        .where(*conditions(filters))
        .group_by(label)
        .order_by(*([label] if group_by == "day" else [sa.desc("requests"), label]))
        .limit(limit)
    )
    await _for_reading(session)
    return (await session.execute(query)).all()


async def by_time(session: AsyncSession, filters: Filters, bucket_seconds: int) -> Sequence[sa.Row[Any]]:
    """The buckets in which something happened; `slot` is the bucket's start divided by its length."""
    slot = _slot(UsageEvent.at, bucket_seconds)
    query = (
        sa.select(slot.label("slot"), *sums(), *percentiles())
        .where(*conditions(filters))
        .group_by(slot)
        .order_by(slot)
    )
    await _for_reading(session)
    return (await session.execute(query)).all()


async def rejections_by_time(
    session: AsyncSession, since: datetime.datetime, until: datetime.datetime, bucket_seconds: int
) -> dict[int, int]:
    """Per slot, how many requests were turned away that belong to no authenticated caller."""
    slot = _slot(GatewayRejection.minute, bucket_seconds)
    query = (
        sa.select(slot.label("slot"), sa.cast(sa.func.sum(GatewayRejection.count), sa.BigInteger))
        .where(
            # A minute belongs to the range that it overlaps: its counts cannot be parted.
            GatewayRejection.minute > since - datetime.timedelta(minutes=1),
            GatewayRejection.minute < until,
            GatewayRejection.key_prefix == "",
        )
        .group_by(slot)
    )
    return {int(row[0]): int(row[1]) for row in await session.execute(query)}


def conditions(filters: Filters) -> Conditions:
    """What a row must meet."""
    wanted: Conditions = []
    if filters.since is not None:
        wanted += [UsageEvent.at >= filters.since, UsageEvent.id >= _id(filters.since, -CLOCK_TOLERANCE)]
    if filters.until is not None:
        wanted += [UsageEvent.at < filters.until, UsageEvent.id < _id(filters.until, CLOCK_TOLERANCE)]
    if filters.principal is not None:
        wanted.append(_named(filters.principal, UsageEvent.principal_id, UsageEvent.principal, Principal))
    if filters.provider is not None:
        wanted.append(_named(filters.provider, UsageEvent.provider_id, UsageEvent.provider, Provider))
    if filters.key is not None:
        by_id = has_uuid_shape(filters.key)
        wanted.append(
            UsageEvent.key_id == UUID(filters.key) if by_id else UsageEvent.key_prefix == filters.key
        )
    exact = ("model", "provider_model", "backend_id", "tag", "endpoint", "status", "refusal", "stream")
    for name in (*exact, "replica", "request_id"):
        value = getattr(filters, name)
        if value is not None:
            wanted.append(getattr(UsageEvent, name) == value)
    return wanted


def sums() -> tuple[sa.Label[Any], ...]:
    """What is added up of a group. Refused requests are neither errors nor cancelled; a request that may
    have consumed tokens is `consuming`; sums are NULL where nothing was known."""
    refused = UsageEvent.refusal.is_not(None)
    served = UsageEvent.refusal.is_(None)
    cancelled = served & (UsageEvent.status == CANCELLED)
    failed = served & (UsageEvent.status >= 400) & (UsageEvent.status != CANCELLED)
    consuming = served & sa.or_(
        UsageEvent.status < 400,
        (UsageEvent.status == CANCELLED) & (UsageEvent.attempts > 0),
        (UsageEvent.status == BROKEN) & UsageEvent.ttft_ms.is_not(None),
    )
    return (
        sa.func.count().label("requests"),
        _count(failed, "errors"),
        _count(cancelled, "cancelled"),
        *(_count(refused & (UsageEvent.refusal == kind), f"refused_{kind}") for kind in get_args(Refusal)),
        _count(consuming, "consuming"),
        _count(consuming & UsageEvent.cost_micros.is_(None), "unpriced_requests"),
        _count(consuming & ~UsageEvent.usage_reported, "unknown_usage_requests"),
        *(
            sa.func.sum(getattr(UsageEvent, name)).label(name)
            for name in (
                "prompt_tokens",
                "completion_tokens",
                "cached_tokens",
                "reasoning_tokens",
                "cost_micros",
            )
        ),
    )


def percentiles() -> tuple[sa.Label[Any], ...]:
    """Of the durations of what was not refused: a refusal takes no time and would flatter them."""
    served = UsageEvent.refusal.is_(None)
    return tuple(
        sa.func.percentile_cont(share).within_group(UsageEvent.duration_ms).filter(served).label(name)
        for name, share in (("p50_ms", 0.5), ("p95_ms", 0.95))
    )


def _count(condition: sa.ColumnElement[bool], name: str) -> sa.Label[int]:
    return sa.func.count().filter(condition).label(name)


def _slot(instant: Any, bucket_seconds: int) -> sa.ColumnElement[int]:
    epoch = sa.func.extract("epoch", instant)
    return sa.cast(sa.func.floor(epoch / bucket_seconds), sa.BigInteger)


def _id(at: datetime.datetime, shift: datetime.timedelta) -> UUID:
    return UUID(lowest_id(at + shift))


def _named(wanted: str, id_column: Any, name_column: Any, living: type[Any]) -> sa.ColumnElement[bool]:
    """By id; or by the name that a living row bears now, and by the recorded one where the row is no more."""
    if has_uuid_shape(wanted):
        return sa.cast(id_column == UUID(wanted), sa.Boolean)
    now = sa.select(living.id).where(living.name == wanted).scalar_subquery()
    alive = sa.exists().where(living.id == id_column)
    return sa.or_(id_column == now, sa.and_(name_column == wanted, ~alive))


def _label(group_by: GroupBy) -> tuple[sa.ColumnElement[Any], Any]:
    """What a group is called, and what must be joined to know. Those with an id go by the name that their
    row bears now, so that a rename does not split history."""
    table = UsageEvent.__table__
    if group_by == "principal":
        joined = table.outerjoin(Principal, Principal.id == UsageEvent.principal_id)
        return sa.func.coalesce(Principal.name, UsageEvent.principal), joined
    if group_by == "provider":
        joined = table.outerjoin(Provider, Provider.id == UsageEvent.provider_id)
        return sa.func.coalesce(Provider.name, UsageEvent.provider), joined
    if group_by == "key":
        return UsageEvent.key_prefix.expression, table
    if group_by == "day":
        in_utc = sa.func.timezone("UTC", UsageEvent.at)
        return sa.func.to_char(in_utc, "YYYY-MM-DD"), table
    column: sa.ColumnElement[Any] = getattr(UsageEvent, group_by)
    return column, table


async def _for_reading(session: AsyncSession) -> None:
    # Compiling costs more than such a query gains by it, and grouping should stay in memory.
    await session.execute(sa.text("SET LOCAL jit = off"))
    await session.execute(sa.text("SET LOCAL work_mem = '64MB'"))
