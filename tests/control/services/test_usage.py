"""Usage read back: what each figure counts, and what is null."""

from __future__ import annotations

import datetime
from typing import Any
from uuid import UUID

import msgspec
import pytest

from fastllm_control.errors import Invalid
from fastllm_control.repositories.usage_reading import Filters, GroupBy
from fastllm_control.services import usage
from fastllm_control.services.usage import EventRow, GroupRow, Summary
from fastllm_control.transaction import Database
from fastllm_shared.ids import uuid7
from fastllm_shared.usage import UsageEvent
from tests.fakes.usage import NOON, make_event, make_principal, opened, put, run

HOUR = datetime.timedelta(hours=1)
DAY = datetime.timedelta(days=1)
LATER = NOON + HOUR
UNKNOWN: dict[str, Any] = {"prompt_tokens": None, "completion_tokens": None, "usage_reported": False}
NO_REFUSALS: dict[str, int] = dict.fromkeys(usage.REFUSALS, 0)


async def summary(
    database: Database, group_by: GroupBy = "model", limit: int = 100, **filters: Any
) -> Summary:
    async with database.read() as session:
        return await usage.summary(session, Filters(**filters), group_by, limit, LATER)


async def listed(
    database: Database, limit: int = 100, after: UUID | None = None, **filters: Any
) -> list[EventRow]:
    async with database.read() as session:
        return await usage.events(session, Filters(**filters), after, limit)


async def only_group(url: str, *events: UsageEvent) -> GroupRow:
    async with opened(url) as database:
        await put(database, *events)
        [row] = (await summary(database)).rows
    return row


async def test_an_event_is_listed_as_it_was_stored(database_url: str) -> None:
    backend = uuid7()
    event = make_event(
        backend_id=str(backend),
        rule=0,
        tag="batch",
        cached_tokens=0,
        cost_micros=7,
        cost_source="price",
        ttft_ms=1.5,
    )
    async with opened(database_url) as database:
        await put(database, event)
        [row] = await listed(database)
    names = set(EventRow.__struct_fields__)
    assert len(names) == 26
    expected = {name: value for name, value in msgspec.structs.asdict(event).items() if name in names}
    assert msgspec.structs.asdict(row) == expected | {"id": UUID(event.id), "at": NOON, "backend_id": backend}


async def test_newest_first_and_pages_stay_put_while_rows_come_in(database_url: str) -> None:
    start = NOON.timestamp()
    events = [make_event(start + n) for n in range(10)]
    async with opened(database_url) as database:
        await put(database, *events)
        first = await listed(database, limit=4)
        await put(database, *(make_event(start + 100 + n) for n in range(5)))
        second = await listed(database, limit=4, after=first[-1].id)
        third = await listed(database, limit=4, after=second[-1].id)
    found = [str(row.id) for row in (*first, *second, *third)]
    assert found == [event.id for event in reversed(events)]


async def test_filters_of_the_list(database_url: str) -> None:
    backend = uuid7()
    special: dict[str, Any] = {
        "key": "sk-other",
        "model": "other",
        "provider_model": "llama",
        "provider": "gpu-9",
        "backend_id": backend,
        "tag": "batch",
        "endpoint": "/v1/messages",
        "status": 429,
        "refusal": "rate_limit",
        "stream": True,
        "replica": "replica-9",
        "request_id": "req-9",
        "principal": "team-z",
    }
    start = NOON.timestamp()
    async with opened(database_url) as database:
        for n, (name, value) in enumerate(special.items()):
            field = "key_prefix" if name == "key" else name
            stored = str(value) if isinstance(value, UUID) else value
            changes: dict[str, Any] = {field: stored}
            await put(database, make_event(start + n, **changes))
        for n, (name, value) in enumerate(special.items()):
            [row] = await listed(database, **{name: value})
            assert row.at == NOON + datetime.timedelta(seconds=n), name
        assert await listed(database, model="nobody's") == []


async def test_since_is_included_and_until_is_not(database_url: str) -> None:
    async with opened(database_url) as database:
        await put(database, *(make_event(NOON.timestamp() + n) for n in range(3)))
        second = datetime.timedelta(seconds=1)
        later = [NOON + 2 * second, NOON + second]
        assert [row.at for row in await listed(database, since=NOON + second)] == later
        assert [row.at for row in await listed(database, until=NOON + second)] == [NOON]
        without_zone = (NOON + second).replace(tzinfo=None)
        assert [row.at for row in await listed(database, until=without_zone)] == [NOON]


async def test_a_long_request_is_found_by_when_it_was_accepted(database_url: str) -> None:
    """Its id may have been minted hours after `at`."""
    accepted = NOON.timestamp() - 20 * 3600
    async with opened(database_url) as database:
        await put(database, make_event(accepted, minted=NOON.timestamp()))
        assert len(await listed(database, since=NOON - 21 * HOUR, until=NOON - 19 * HOUR)) == 1
        assert await listed(database, since=NOON - HOUR) == []


@pytest.mark.parametrize("year", [1, 1969, 9999])
async def test_absurd_ranges_are_only_empty(database_url: str, year: int) -> None:
    instant = datetime.datetime(year, 6, 1, tzinfo=datetime.UTC)
    async with opened(database_url) as database:
        await put(database, make_event())
        assert len(await listed(database, since=instant)) == (year < 9999)
        assert len(await listed(database, until=instant)) == (year == 9999)


async def test_a_principal_is_found_by_its_id_and_by_the_name_that_it_bears_now(database_url: str) -> None:
    renamed, gone = uuid7(), uuid7()
    async with opened(database_url) as database:
        await make_principal(database, renamed, "team-new")
        await put(database, make_event(principal="team-old", principal_id=str(renamed)))
        await put(database, make_event(principal="team-gone", principal_id=str(gone)))
        for wanted in ("team-new", str(renamed)):
            [row] = await listed(database, principal=wanted)
            assert row.principal == "team-old"
        assert await listed(database, principal="team-old") == []
        for wanted in ("team-gone", str(gone)):
            [row] = await listed(database, principal=wanted)
            assert row.principal == "team-gone"


async def test_everything_that_a_group_says(database_url: str) -> None:
    row = await only_group(
        database_url,
        make_event(
            prompt_tokens=10, completion_tokens=1, cached_tokens=4, cost_micros=5, cost_source="price"
        ),
        make_event(prompt_tokens=20, completion_tokens=2, reasoning_tokens=1),
        make_event(status=500, **UNKNOWN),
        make_event(status=429, refusal="rate_limit", **UNKNOWN),
        make_event(status=402, refusal="budget", **UNKNOWN),
    )
    assert row == GroupRow(
        group="assistant",
        requests=5,
        errors=1,
        cancelled=0,
        refusals=NO_REFUSALS | {"rate_limit": 1, "budget": 1},
        prompt_tokens=30,
        completion_tokens=3,
        cached_tokens=4,
        reasoning_tokens=1,
        cost_micros=5,
        unpriced_requests=1,
        unknown_usage_requests=0,
        p50_ms=250.0,
        p95_ms=250.0,
    )


FAILED_WITHOUT_USAGE = {"errors": 1, "prompt_tokens": 0, "unknown_usage_requests": 0}
COUNTED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    # what, the event, what the group says
    ("nothing priced", {}, {"cost_micros": None, "unpriced_requests": 1}),
    ("priced at nothing", {"cost_micros": 0}, {"cost_micros": 0, "unpriced_requests": 0}),
    ("no usage told", UNKNOWN, {"prompt_tokens": None, "unknown_usage_requests": 1, "unpriced_requests": 1}),
    ("usage told as nothing", {"prompt_tokens": 0}, {"prompt_tokens": 0, "unknown_usage_requests": 0}),
    ("an engine's error", UNKNOWN | {"status": 500}, FAILED_WITHOUT_USAGE),
    ("never got through", UNKNOWN | {"status": 502}, FAILED_WITHOUT_USAGE),
    (
        "died mid-stream",
        UNKNOWN | {"status": 502, "ttft_ms": 3.0},
        {"errors": 1, "prompt_tokens": None, "unknown_usage_requests": 1},
    ),
    (
        "the client went while it was answered",
        UNKNOWN | {"status": 499},
        {"errors": 0, "cancelled": 1, "prompt_tokens": None, "unknown_usage_requests": 1},
    ),
    (
        "the client went while it was queued",
        UNKNOWN | {"status": 499, "attempts": 0},
        {"errors": 0, "cancelled": 1, "prompt_tokens": 0, "unknown_usage_requests": 0},
    ),
    (
        "refused",
        UNKNOWN | {"status": 503, "refusal": "overloaded"},
        {
            "errors": 0,
            "refusals": NO_REFUSALS | {"overloaded": 1},
            "prompt_tokens": 0,
            "cost_micros": None,
            "unpriced_requests": 0,
            "unknown_usage_requests": 0,
            "p50_ms": None,
            "p95_ms": None,
        },
    ),
]


@pytest.mark.parametrize(("what", "event", "said"), COUNTED)
async def test_what_counts_as_what(
    database_url: str, what: str, event: dict[str, Any], said: dict[str, Any]
) -> None:
    row = await only_group(database_url, make_event(**event))
    assert row.requests == 1
    assert {name: getattr(row, name) for name in said} == said, what


async def test_percentiles(database_url: str) -> None:
    """Of 1…100 ms, linear between neighbours; a refusal's nothing is left out."""
    events = [make_event(duration_ms=float(n)) for n in range(1, 101)]
    refused = [make_event(duration_ms=0.0, status=429, refusal="rate_limit") for _ in range(100)]
    row = await only_group(database_url, *events, *refused)
    assert (row.p50_ms, row.p95_ms) == (50.5, 95.05)


GROUPS: list[tuple[GroupBy, str]] = [
    ("model", "model"),
    ("principal", "principal"),
    ("provider_model", "provider_model"),
    ("key", "key_prefix"),
    ("provider", "provider"),
    ("tag", "tag"),
]


@pytest.mark.parametrize(("group_by", "field"), GROUPS)
async def test_groups_come_with_the_most_requests_first_and_the_nameless_too(
    database_url: str, group_by: GroupBy, field: str
) -> None:
    names = ["b", "a", "a", "c", "c", "c", None, None, None, None]
    async with opened(database_url) as database:
        changes: list[dict[str, Any]] = [{field: name} for name in names]
        await put(database, *(make_event(**change) for change in changes))
        found = await summary(database, group_by)
    assert [(row.group, row.requests) for row in found.rows] == [(None, 4), ("c", 3), ("a", 2), ("b", 1)]
    assert not found.truncated


async def test_days_are_in_their_order(database_url: str) -> None:
    async with opened(database_url) as database:
        midnight = NOON - 12 * HOUR
        before = (midnight - datetime.timedelta(milliseconds=1)).timestamp()
        await put(database, make_event(midnight.timestamp()), make_event(before))
        rows = (await summary(database, "day")).rows
    assert [row.group for row in rows] == ["2026-11-29", "2026-11-30"]


async def test_more_groups_than_asked_for_are_said_to_be_cut(database_url: str) -> None:
    async with opened(database_url) as database:
        await put(database, *(make_event(model=f"m{n}") for n in range(3)))
        found = await summary(database, limit=2)
        assert (len(found.rows), found.truncated) == (2, True)
        whole = await summary(database, limit=3)
        assert (len(whole.rows), whole.truncated) == (3, False)


async def test_a_rename_does_not_split_history(database_url: str) -> None:
    provider, principal = uuid7(), uuid7()
    async with opened(database_url) as database:
        await make_principal(database, principal, "team-new")
        await run(
            database,
            "INSERT INTO providers (id, name, kind, api_base, address)"
            " VALUES (:id, 'gpu-new', 'static', 'http://127.0.0.1:9/v1', '127.0.0.1:9')",
            id=provider,
        )
        ids: dict[str, Any] = {"provider_id": str(provider), "principal_id": str(principal)}
        await put(
            database,
            make_event(provider="gpu-old", principal="team-old", **ids),
            make_event(provider="gpu-new", principal="team-new", **ids),
            make_event(provider="gpu-gone", principal="team-gone", provider_id=str(uuid7())),
        )
        by_provider = {row.group: row.requests for row in (await summary(database, "provider")).rows}
        by_principal = {row.group: row.requests for row in (await summary(database, "principal")).rows}
        assert (await summary(database, "tag", provider="gpu-new")).rows[0].requests == 2
    assert by_provider == {"gpu-new": 2, "gpu-gone": 1}
    assert by_principal == {"team-new": 2, "team-gone": 1}


async def test_the_last_thirty_days_unless_said(database_url: str) -> None:
    async with opened(database_url) as database:
        await put(database, *(make_event((LATER - n * DAY).timestamp()) for n in (29, 31)))
        found = await summary(database)
        assert (found.rows[0].requests, found.since, found.until) == (1, LATER - 30 * DAY, LATER)
        assert (await summary(database, since=LATER - 40 * DAY)).rows[0].requests == 2


@pytest.mark.parametrize("width", [0, -1])
async def test_a_range_must_run_forward(database_url: str, width: int) -> None:
    async with opened(database_url) as database:
        with pytest.raises(Invalid) as caught:
            await summary(database, since=NOON, until=NOON + width * HOUR)
    assert caught.value.field == "since"
