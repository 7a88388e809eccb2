"""`POST /usage` from the proxies, and reading usage back."""

from __future__ import annotations

import datetime
from typing import Annotated
from uuid import UUID

import msgspec

from fastllm_control import ingest
from fastllm_control.operations import Call, Operation
from fastllm_control.paging import Page, PageQuery, page_of
from fastllm_control.repositories.usage_reading import Filters, GroupBy
from fastllm_control.services import timeseries, usage
from fastllm_control.services.timeseries import Series
from fastllm_control.services.usage import EventRow, Summary
from fastllm_shared.usage import Refusal, UsageAck, UsageBatch

MAX_BATCH_BYTES = 8 << 20
MAX_GROUPS = 10_000
MAX_BUCKET_SECONDS = 366 * 86_400

Name = Annotated[str, msgspec.Meta(max_length=256)]


class EventsQuery(PageQuery, frozen=True, forbid_unknown_fields=True):
    """Which events: `principal` and `provider` by id or name, `key` by id or prefix; `since` is included,
    `until` is not."""

    since: datetime.datetime | None = None
    until: datetime.datetime | None = None
    principal: Name | None = None
    key: Name | None = None
    model: Name | None = None
    provider_model: Name | None = None
    provider: Name | None = None
    backend_id: UUID | None = None
    tag: Name | None = None
    endpoint: Name | None = None
    status: Annotated[int, msgspec.Meta(ge=100, le=599)] | None = None
    refusal: Refusal | None = None
    stream: bool | None = None
    replica: Name | None = None
    request_id: Name | None = None


class SummaryQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to group by, over which time; the other fields narrow down what is counted."""

    group_by: GroupBy = "model"
    since: datetime.datetime | None = None
    until: datetime.datetime | None = None
    principal: Name | None = None
    key: Name | None = None
    model: Name | None = None
    provider_model: Name | None = None
    provider: Name | None = None
    tag: Name | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_GROUPS)] = 1000


class SeriesQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`bucket` is in seconds; it is widened where the range would take more than 720 points."""

    since: datetime.datetime | None = None
    until: datetime.datetime | None = None
    bucket: Annotated[int, msgspec.Meta(ge=1, le=MAX_BUCKET_SECONDS)] = 3600
    model: Name | None = None
    principal: Name | None = None


async def post_usage(call: Call) -> UsageAck:
    return await ingest.store(call.tx.session, call.body)


async def list_events(call: Call) -> Page[EventRow]:
    query: EventsQuery = call.query
    async with call.services.database.read() as session:
        found = await usage.events(session, _filters(query), query.after_id(), query.limit + 1)
    return page_of(found, query.limit, lambda row: row.id)


async def summarise(call: Call) -> Summary:
    query: SummaryQuery = call.query
    async with call.services.database.read() as session:
        now = call.services.clock()
        return await usage.summary(session, _filters(query), query.group_by, query.limit, now)


async def get_timeseries(call: Call) -> Series:
    query: SeriesQuery = call.query
    async with call.services.database.read() as session:
        return await timeseries.timeseries(session, _filters(query), query.bucket, call.services.clock())


def _filters(query: msgspec.Struct) -> Filters:
    """The fields that the query and `Filters` share."""
    shared = set(Filters.__struct_fields__) & set(query.__struct_fields__)
    return Filters(**{name: getattr(query, name) for name in shared})


ROUTES = (
    Operation(
        method="POST",
        path="/usage",
        requires="proxy",
        summary="Store a batch of usage events, each once however often it is sent",
        handler=post_usage,
        body=UsageBatch,
        result=UsageAck,
        max_body_bytes=MAX_BATCH_BYTES,
    ),
    Operation(
        method="GET",
        path="/admin/usage/events",
        requires="usage:read",
        summary="Single requests, newest first",
        handler=list_events,
        query=EventsQuery,
        result=Page[EventRow],
    ),
    Operation(
        method="GET",
        path="/admin/usage",
        requires="usage:read",
        summary="Requests, errors, refusals, tokens, cost and latency by group",
        handler=summarise,
        query=SummaryQuery,
        result=Summary,
    ),
    Operation(
        method="GET",
        path="/admin/timeseries",
        requires="usage:read",
        summary="The same sums over time, one point a bucket",
        handler=get_timeseries,
        query=SeriesQuery,
        result=Series,
    ),
)
