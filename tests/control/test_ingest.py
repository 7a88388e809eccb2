"""Usage is stored once each, whatever the order, the repetition and the number of connections."""

from __future__ import annotations

import asyncio
import datetime
import random
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from fastllm_control.errors import Invalid
from fastllm_control.failures import refusal_of
from fastllm_control.ingest import columns_of, store
from fastllm_control.transaction import Database
from fastllm_shared.ids import uuid7
from fastllm_shared.usage import MAX_BATCH_EVENTS, UsageAck, UsageEvent
from tests.fakes.usage import (
    NOON,
    PROXY,
    batch_of,
    event_id,
    make_event,
    make_key,
    make_principal,
    opened,
    put,
    rows_of,
    run,
)

MINUTE = datetime.timedelta(minutes=1)


def events_at_noon(count: int, **changes: Any) -> list[UsageEvent]:
    start = NOON.timestamp()
    return [make_event(start + (n + 0.5) / 1000, sequence=n + 1, **changes) for n in range(count)]


async def stored_ids(database: Database) -> list[str]:
    return [str(row[0]) for row in await rows_of(database, "SELECT id FROM usage_events ORDER BY id")]


async def test_a_whole_event_is_stored_as_it_came(database_url: str) -> None:
    event = UsageEvent(
        id=event_id(NOON.timestamp()),
        at=NOON.timestamp() + 0.25,
        replica="replica-1",
        request_id="req-1",
        endpoint="/v1/messages",
        status=502,
        sequence=7,
        principal_id=str(uuid7()),
        principal="team-a",
        key_id=str(uuid7()),
        key_prefix="sk-abcdefgh",
        model="assistant",
        provider_model="qwen",
        provider_id=str(uuid7()),
        provider="gpu-1",
        backend_id=str(uuid7()),
        rule=3,
        tag="batch",
        refusal=None,
        prompt_tokens=2**63 - 1,
        completion_tokens=0,
        cached_tokens=5,
        reasoning_tokens=6,
        usage_reported=True,
        cost_micros=12,
        cost_source="price",
        stream=True,
        attempts=2,
        ttft_ms=12.5,
        duration_ms=1234.5,
    )
    async with opened(database_url) as database:
        assert await put(database, event) == UsageAck(stored=1, duplicates=0)
        names = UsageEvent.__struct_fields__
        [found] = await rows_of(database, f"SELECT {', '.join(names)} FROM usage_events")
    expected = msgspec.structs.asdict(event) | {"at": NOON + datetime.timedelta(milliseconds=250)}
    for name in ("id", "principal_id", "key_id", "provider_id", "backend_id"):
        expected[name] = UUID(expected[name])
    assert dict(zip(names, found, strict=True)) == expected


async def test_what_is_unknown_stays_null(database_url: str) -> None:
    event = UsageEvent(
        id=event_id(NOON.timestamp()),
        at=NOON.timestamp(),
        replica="replica-1",
        request_id="req-1",
        endpoint="/v1/chat/completions",
        status=499,
    )
    optional = [field.name for field in msgspec.structs.fields(UsageEvent) if field.default is None]
    async with opened(database_url) as database:
        await put(database, event)
        [found] = await rows_of(database, f"SELECT {', '.join(optional)} FROM usage_events")
    assert len(optional) == 19
    assert set(found) == {None}


async def test_a_full_batch_and_its_replay(database_url: str) -> None:
    events = events_at_noon(MAX_BATCH_EVENTS)
    async with opened(database_url) as database:
        assert await put(database, *events) == UsageAck(stored=500, duplicates=0)
        assert await put(database, *events) == UsageAck(stored=0, duplicates=500)
        assert await stored_ids(database) == [event.id for event in events]
        counted = await rows_of(database, "SELECT replica, events_stored, highest_sequence FROM replicas")
    assert counted == [("replica-1", 500, 500)]


async def test_an_empty_batch_changes_nothing(database_url: str) -> None:
    async with opened(database_url) as database:
        assert await put(database) == UsageAck(stored=0, duplicates=0)
        assert await rows_of(database, "SELECT 1 FROM replicas") == []


async def test_an_event_twice_in_one_batch_is_stored_once_and_the_first_counts(database_url: str) -> None:
    first = make_event(prompt_tokens=1)
    again = msgspec.structs.replace(first, id=first.id.upper(), prompt_tokens=2)
    async with opened(database_url) as database:
        assert await put(database, first, make_event(), again) == UsageAck(stored=2, duplicates=1)
        query = "SELECT prompt_tokens FROM usage_events WHERE id = :id"
        assert await rows_of(database, query, id=UUID(first.id)) == [(1,)]


async def test_the_same_event_over_two_connections_at_once(database_url: str) -> None:
    event = make_event()
    async with opened(database_url) as database:
        async with database.begin(PROXY) as first:
            assert (await store(first.session, batch_of(event))).stored == 1
            second = asyncio.create_task(put(database, event))
            await asyncio.sleep(0.1)
            assert not second.done()  # it waits to see whether the first commits
        assert await second == UsageAck(stored=0, duplicates=1)
        assert len(await stored_ids(database)) == 1
        assert await rows_of(database, "SELECT events_stored FROM replicas") == [(1,)]


async def test_an_event_is_stored_by_the_second_connection_when_the_first_rolls_back(
    database_url: str,
) -> None:
    event = make_event()
    async with opened(database_url) as database:
        async with database.begin(PROXY) as first:
            await store(first.session, batch_of(event))
            second = asyncio.create_task(put(database, event))
            await asyncio.sleep(0.05)
            await first.session.rollback()
        assert await second == UsageAck(stored=1, duplicates=0)


async def test_batches_that_share_everything_never_deadlock(database_url: str) -> None:
    """The same events, keys and replicas in many orders, all at once: each waits, none is a victim."""
    keys = [uuid7() for _ in range(8)]
    owner = uuid7()
    async with opened(database_url) as database:
        await make_principal(database, owner, "team-a")
        for key in keys:
            await make_key(database, key, owner)
        events = [
            msgspec.structs.replace(event, key_id=str(keys[n % 8]), replica=f"replica-{n % 5}")
            for n, event in enumerate(events_at_noon(200))
        ]
        shuffle = random.Random(7)
        answers: list[UsageAck] = []
        for _ in range(4):
            batches = [shuffle.sample(events, 150) for _ in range(8)]
            answers += await asyncio.gather(*(put(database, *batch) for batch in batches))
        await put(database, *events)
        assert await stored_ids(database) == [event.id for event in events]
        counted = await rows_of(database, "SELECT sum(events_stored)::int FROM replicas")
    assert counted == [(200,)]
    assert sum(answer.stored for answer in answers) <= 200


async def test_a_connection_killed_in_the_middle_leaves_nothing(database_url: str) -> None:
    events = events_at_noon(50)

    async def store_and_lose_the_connection(database: Database) -> None:
        async with database.begin(PROXY) as tx:
            assert (await store(tx.session, batch_of(*events))).stored == 50
            pid = (await tx.session.execute(text("SELECT pg_backend_pid()"))).scalar_one()
            await run(database, "SELECT pg_terminate_backend(:pid, 5000)", pid=pid)

    async with opened(database_url) as database:
        with pytest.raises(DBAPIError) as caught:
            await store_and_lose_the_connection(database)
        assert refusal_of(caught.value) is not None  # 503: the proxy sends it again
        assert await stored_ids(database) == []
        assert await rows_of(database, "SELECT 1 FROM replicas") == []
        assert await put(database, *events) == UsageAck(stored=50, duplicates=0)


async def test_it_neither_makes_a_version_nor_an_audit_event(database_url: str) -> None:
    async with opened(database_url) as database:
        before = await rows_of(database, "SELECT version FROM config")
        await put(database, make_event())
        assert await rows_of(database, "SELECT version FROM config") == before
        assert await rows_of(database, "SELECT 1 FROM audit_events") == []


async def test_a_key_is_marked_as_used_to_the_minute_and_never_backwards(database_url: str) -> None:
    key, owner = uuid7(), uuid7()
    now = datetime.datetime.now(datetime.UTC)
    query = "SELECT last_used_at FROM api_keys"
    async with opened(database_url) as database:
        await make_principal(database, owner, "team-a")
        await make_key(database, key, owner)
        recent, earlier = now - 5 * MINUTE, now - 9 * MINUTE
        await put(database, make_event(recent.timestamp(), key_id=str(key)))
        whole_minute = recent.replace(second=0, microsecond=0)
        assert await rows_of(database, query) == [(whole_minute,)]
        await put(database, make_event(earlier.timestamp(), key_id=str(key)))
        assert await rows_of(database, query) == [(whole_minute,)]


async def test_a_clock_that_is_ahead_marks_no_key_as_used_in_the_future(database_url: str) -> None:
    key, owner = uuid7(), uuid7()
    now = datetime.datetime.now(datetime.UTC)
    async with opened(database_url) as database:
        await make_principal(database, owner, "team-a")
        await make_key(database, key, owner)
        await put(database, make_event((now + 900 * MINUTE).timestamp(), key_id=str(key)))
        [(used,)] = await rows_of(database, "SELECT last_used_at FROM api_keys")
    assert used <= now + MINUTE


async def test_usage_of_a_principal_and_key_that_are_gone_is_stored(database_url: str) -> None:
    event = make_event(principal_id=str(uuid7()), key_id=str(uuid7()), provider_id=str(uuid7()))
    async with opened(database_url) as database:
        assert (await put(database, event)).stored == 1


@pytest.mark.parametrize("at", [0.0, 1.0, 86_400 * 365.0, 4_102_444_800.0, 253_402_300_799.0])
async def test_events_of_odd_clocks_are_stored(database_url: str, at: float) -> None:
    event = make_event(at)
    async with opened(database_url) as database:
        assert (await put(database, event)).stored == 1
        [(kept, seconds)] = await rows_of(
            database, "SELECT tableoid::regclass::text, extract(epoch FROM at)::float8 FROM usage_events"
        )
    assert kept == "usage_events_default"
    assert seconds == at


async def test_a_time_far_from_the_ids_is_drawn_in_to_a_day(database_url: str) -> None:
    noon = NOON.timestamp()
    events = [make_event(at, minted=noon) for at in (noon - 1e6, noon, noon + 1e6)]
    async with opened(database_url) as database:
        await put(database, *events)
        found = await rows_of(database, "SELECT at FROM usage_events ORDER BY at")
    day = datetime.timedelta(days=1)
    assert found == [(NOON - day,), (NOON,), (NOON + day,)]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"id": "not-an-id"}, "events[1].id"),
    ({"id": "0190a000-0000-4000-8000-000000000001"}, "events[1].id"),
    ({"id": "ffffffff-ffff-7000-8000-000000000001"}, "events[1].id"),
    ({"id": "0190a000-0000-7000-8000-00000000000\n"}, "events[1].id"),
    ({"at": -1.0}, "events[1].at"),
    ({"at": 1e300}, "events[1].at"),
    ({"at": float("nan")}, "events[1].at"),
    ({"status": 0}, "events[1].status"),
    ({"status": 600}, "events[1].status"),
    ({"sequence": -1}, "events[1].sequence"),
    ({"sequence": 2**63}, "events[1].sequence"),
    ({"rule": -1}, "events[1].rule"),
    ({"rule": 2**31}, "events[1].rule"),
    ({"attempts": 2**31}, "events[1].attempts"),
    ({"ttft_ms": -0.1}, "events[1].ttft_ms"),
    ({"duration_ms": float("inf")}, "events[1].duration_ms"),
    ({"duration_ms": float("nan")}, "events[1].duration_ms"),
    ({"principal_id": "team-a"}, "events[1].principal_id"),
    ({"key_id": ""}, "events[1].key_id"),
    ({"provider_id": "0190a000-0000-7000-8000-00000000000\x00"}, "events[1].provider_id"),
    ({"backend_id": "x" * 36}, "events[1].backend_id"),
]


@pytest.mark.parametrize(("changes", "field"), REFUSED)
def test_what_a_proxy_says_wrongly_of_itself_is_refused_by_name(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as caught:
        columns_of(batch_of(make_event(), msgspec.structs.replace(make_event(), **changes)))
    assert caught.value.field == field
    assert caught.value.message.startswith(field)


def test_more_events_than_a_batch_may_have_are_refused() -> None:
    with pytest.raises(Invalid) as caught:
        columns_of(batch_of(*events_at_noon(MAX_BATCH_EVENTS + 1)))
    assert caught.value.field == "events"


def test_what_others_said_is_cleaned_and_the_event_kept() -> None:
    event = make_event(
        model="m\x00" + "x" * 1000,
        tag="\x00",
        prompt_tokens=-1,
        completion_tokens=2**63,
        cost_micros=-5,
        cost_source="provider",
    )
    columns = columns_of(batch_of(event)).columns
    assert columns["model"] == ["m\ufffd" + "x" * 254]
    assert columns["tag"] == ["\ufffd"]
    assert columns["prompt_tokens"] == columns["completion_tokens"] == columns["cost_micros"] == [None]
    assert columns["cost_source"] == [None]


async def test_a_driver_error_is_not_taken_for_an_invalid_batch(database_url: str) -> None:
    """Were the table gone, that must not read as 400: the proxy would throw the events away."""
    async with opened(database_url) as database:
        await run(database, "DROP TABLE usage_events")
        with pytest.raises(Exception, match="usage_events") as caught:
            await put(database, make_event())
    assert isinstance(getattr(caught.value, "orig", caught.value).__cause__, asyncpg.UndefinedTableError)
