"""Usage over HTTP: how proxies hand it in, how people read it."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from fastllm_shared.usage import MAX_BATCH_EVENTS, UsageEvent, encode_batch
from tests.fakes.control_plane import PROXY_TOKEN, Answer, ControlPlane
from tests.fakes.usage import batch_of, make_event

ROW = [
    "id, at, principal, key_prefix, model, provider_model, provider, backend_id, rule, tag, endpoint, status",
    "refusal, prompt_tokens, completion_tokens, cached_tokens, reasoning_tokens, usage_reported, cost_micros",
    "cost_source, stream, attempts, ttft_ms, duration_ms, replica, request_id",
]
GROUP = [
    "group, requests, errors, refusals, prompt_tokens, completion_tokens, cached_tokens, cost_micros",
    "unpriced_requests, unknown_usage_requests, p50_ms, p95_ms",
]
POINT = [*GROUP, "at, refused_unattributed, rolled_up"]


def names(lines: list[str]) -> set[str]:
    return {name for line in lines for name in line.split(", ")}


async def post(plane: ControlPlane, *events: UsageEvent) -> Answer:
    return await plane.call("POST", "/usage", raw=encode_batch(batch_of(*events)), token=PROXY_TOKEN)


def recent(plane: ControlPlane, seconds: float = 1.0, **changes: Any) -> UsageEvent:
    return make_event(plane.clock.now().timestamp() - seconds, **changes)


async def test_a_full_batch_is_acknowledged_stored_and_listed(plane: ControlPlane) -> None:
    events = [recent(plane, 600 - n, sequence=n + 1) for n in range(MAX_BATCH_EVENTS)]
    answer = await post(plane, *events)
    assert (answer.status, answer.json) == (200, {"stored": 500, "duplicates": 0})
    assert answer.version is None
    assert (await post(plane, *events)).json == {"stored": 0, "duplicates": 500}
    seen: list[str] = []
    after = ""
    while True:
        page = await plane.call("GET", f"/admin/usage/events?limit=150{after}")
        seen += [row["id"] for row in page.rows]
        if page.json["next"] is None:
            break
        after = f"&after={page.json['next']}"
    assert seen == [event.id for event in reversed(events)]


async def test_a_row_is_as_promised(plane: ControlPlane) -> None:
    event = recent(plane, cached_tokens=None)
    await post(plane, event)
    [row] = (await plane.call("GET", "/admin/usage/events")).rows
    assert set(row) == names(ROW)
    assert (row["id"], row["prompt_tokens"], row["cached_tokens"]) == (event.id, 100, None)
    assert row["at"].endswith("Z")


async def test_the_same_batch_over_many_connections_at_once(plane: ControlPlane) -> None:
    events = [recent(plane, n) for n in range(50)]
    answers = await asyncio.gather(*(post(plane, *events) for _ in range(8)))
    assert [answer.status for answer in answers] == [200] * 8
    assert sum(answer.json["stored"] for answer in answers) == 50


BROKEN: list[tuple[str, Any, str]] = [
    ("prompt_tokens", "many", "events[3].prompt_tokens"),
    ("prompt_tokens", 1.5, "events[3].prompt_tokens"),
    ("status", 99, "events[3].status"),
    ("id", "no-id", "events[3].id"),
    ("at", None, "events[3].at"),
    ("refusal", "bad mood", "events[3].refusal"),
    ("tag", "a\x00b", "events[3].tag"),
    ("sequence", 2**70, "events[3].sequence"),
    ("duration_ms", -1, "events[3].duration_ms"),
]


@pytest.mark.parametrize(("field", "value", "named"), BROKEN)
async def test_one_bad_event_refuses_its_batch_by_name(
    plane: ControlPlane, field: str, value: Any, named: str
) -> None:
    events = [msgspec.to_builtins(recent(plane, n)) for n in range(5)]
    events[3][field] = value
    answer = await plane.call("POST", "/usage", {"replica": "r", "events": events}, token=PROXY_TOKEN)
    assert (answer.status, answer.error["field"]) == (400, named), answer.body
    assert (await plane.call("GET", "/admin/usage/events")).rows == []


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        (b"", 400, None),
        (b"{", 400, None),
        (b"[]", 400, None),
        (b"{}", 400, "replica"),
        (b'{"replica":"r","events":[],"more":1}', 400, "more"),
        (b'{"replica":"r","events":{}}', 400, "events"),
        (b'{"replica":"r","events":[{}]}', 400, "events[0].id"),
        (b"[" * 100_000, 400, None),
    ],
)
async def test_bodies_that_are_no_batch(
    plane: ControlPlane, body: bytes, status: int, field: str | None
) -> None:
    answer = await plane.call("POST", "/usage", raw=body, token=PROXY_TOKEN)
    assert (answer.status, answer.error["field"]) == (status, field), answer.body


async def test_more_than_a_batch(plane: ControlPlane) -> None:
    answer = await post(plane, *(recent(plane, n) for n in range(MAX_BATCH_EVENTS + 1)))
    assert (answer.status, answer.error["field"]) == (400, "events")


async def test_only_proxies_hand_in_and_only_readers_read(plane: ControlPlane) -> None:
    assert (await plane.call("POST", "/usage", {}, token=None)).status == 401
    assert (await plane.call("POST", "/usage", {})).status == 403
    await plane.principal("reader", await plane.role("usage-only", ("usage:read", "*")))
    await plane.principal("other", await plane.role("config-only", ("config:read", "*")))
    reader, other = await plane.key_of("reader"), await plane.key_of("other")
    for path in ("/admin/usage/events", "/admin/usage", "/admin/timeseries"):
        for token, status in ((None, 401), (PROXY_TOKEN, 403), (other, 403), (reader, 200)):
            assert (await plane.call("GET", path, token=token)).status == status, (path, token)


async def test_usage_by_group_and_over_time_as_promised(plane: ControlPlane) -> None:
    await post(plane, recent(plane, 10), recent(plane, 5, model="other", cost_micros=3, cost_source="price"))
    rows = (await plane.call("GET", "/admin/usage?group_by=model")).rows
    assert names(GROUP) <= set(rows[0])
    assert [(row["group"], row["cost_micros"]) for row in rows] == [("assistant", None), ("other", 3)]
    [only] = (await plane.call("GET", "/admin/usage?group_by=principal&model=other")).rows
    assert (only["group"], only["requests"]) == ("team-a", 1)
    series = (await plane.call("GET", "/admin/timeseries?bucket=60")).json
    assert series["bucket_seconds"] == 180  # of the last 24 hours, 60 s would take 1,441 and 120 s 721 points
    assert names(POINT) - {"group"} <= set(series["points"][0])
    assert sum(point["requests"] for point in series["points"]) == 2


async def test_a_new_events_key_shows_when_it_was_last_used(plane: ControlPlane) -> None:
    await plane.principal("team-a", kind="service_account")
    await plane.key_of("team-a", "invoke")
    [key] = [row for row in (await plane.call("GET", "/admin/keys")).rows if row["principal"] == "team-a"]
    assert key["last_used_at"] is None
    await post(plane, recent(plane, 0, key_id=key["id"]))
    [key] = [row for row in (await plane.call("GET", "/admin/keys")).rows if row["principal"] == "team-a"]
    assert key["last_used_at"] is not None


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("events?limit=0", "limit"),
        ("events?limit=1001", "limit"),
        ("events?limit=many", "limit"),
        ("events?after=yesterday", "after"),
        ("events?since=yesterday", "since"),
        ("events?status=1000", "status"),
        ("events?status=200&status=201", "status"),
        ("events?refusal=none", "refusal"),
        ("events?backend_id=b", "backend_id"),
        ("events?colour=red", "colour"),
        ("events?model=%00", "model"),
        ("?group_by=colour", "group_by"),
        ("?since=2026-11-30T00:00:00Z&until=2026-11-29T00:00:00Z", "since"),
        ("?limit=100000", "limit"),
    ],
)
async def test_bad_questions_name_their_field(plane: ControlPlane, query: str, field: str) -> None:
    path = "/admin/usage" + (query if query.startswith("?") else f"/{query}")
    answer = await plane.call("GET", path)
    assert (answer.status, answer.error["field"]) == (400, field), answer.body


@pytest.mark.parametrize(
    "query", ["bucket=0", "bucket=x", "since=9999-12-31T23:59:59Z", "until=0001-01-01", "since=1577836800"]
)
async def test_bad_series_are_refused(plane: ControlPlane, query: str) -> None:
    answer = await plane.call("GET", f"/admin/timeseries?{query}")
    assert answer.status == 400, answer.body
    assert answer.error["field"] in ("bucket", "since", "until")


@pytest.mark.parametrize("since", ["2020-01-01T00:00:00Z", "2020-01-01T00:00:00", "0001-01-01T00:00:00Z"])
async def test_ways_to_write_a_time(plane: ControlPlane, since: str) -> None:
    await post(plane, recent(plane))
    assert len((await plane.call("GET", f"/admin/usage/events?since={since}")).rows) == 1
    [group] = (await plane.call("GET", f"/admin/usage?since={since}")).rows
    assert group["requests"] == 1
