"""Properties of the ingest: Postgres never objects, and no order or repetition stores anything twice."""

from __future__ import annotations

import asyncio

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastllm_control.ingest import LAST_INSTANT
from fastllm_shared.ids import uuid7
from fastllm_shared.usage import UsageEvent, decode_batch, encode_batch
from tests.fakes.usage import NOON, batch_of, make_event, opened, put, rows_of

TEXTS = st.text(max_size=300)
LONG_TEXTS = st.builds(lambda text, times: text * times, TEXTS, st.integers(1, 40))
WILD_EVENTS = st.builds(
    make_event,
    at=st.floats(0, LAST_INSTANT),
    status=st.integers(100, 599),
    model=st.none() | LONG_TEXTS,
    tag=st.none() | LONG_TEXTS,
    request_id=LONG_TEXTS,
    replica=TEXTS,
    endpoint=TEXTS,
    principal=st.none() | LONG_TEXTS,
    prompt_tokens=st.none() | st.integers(),
    completion_tokens=st.none() | st.integers(-(2**64), 2**64),
    cost_micros=st.none() | st.integers(-(2**64), 2**64),
    sequence=st.integers(0, 2**63 - 1),
    rule=st.none() | st.integers(0, 2**31 - 1),
    ttft_ms=st.none() | st.floats(0, 1e12),
    duration_ms=st.floats(0, 1e12),
    refusal=st.none() | st.sampled_from(["authorisation", "rate_limit"]),
)
ON_ONE_DATABASE = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@ON_ONE_DATABASE
@given(events=st.lists(WILD_EVENTS, max_size=5))
async def test_postgres_takes_whatever_passes_the_checks(database_url: str, events: list[UsageEvent]) -> None:
    sent = decode_batch(encode_batch(batch_of(*events)))
    async with opened(database_url) as database:
        assert (await put(database, *sent.events)).stored == len(events)


@ON_ONE_DATABASE
@given(
    batches=st.lists(st.lists(st.integers(0, 11), max_size=12), min_size=1, max_size=10),
    connections=st.integers(1, 4),
)
async def test_any_batches_in_any_order_over_any_connections_store_each_event_once(
    database_url: str, batches: list[list[int]], connections: int
) -> None:
    """Batches are drawn from twelve events, with repetitions, and dealt out to connections that race."""
    replica = f"replica-{uuid7()}"
    start = NOON.timestamp()
    events = [make_event(start + n, replica=replica) for n in range(12)]
    async with opened(database_url) as database:

        async def send(mine: list[list[int]]) -> int:
            return sum([(await put(database, *(events[n] for n in batch))).stored for batch in mine])

        stored = await asyncio.gather(*(send(batches[n::connections]) for n in range(connections)))
        sent = {number for batch in batches for number in batch}
        query = "SELECT id::text FROM usage_events WHERE replica = :replica"
        found = [row[0] for row in await rows_of(database, query, replica=replica)]
        counted = await rows_of(
            database, "SELECT events_stored FROM replicas WHERE replica = :replica", replica=replica
        )
    assert sorted(found) == sorted(events[number].id for number in sent)
    assert sum(stored) == len(sent)
    assert counted == ([(len(sent),)] if sent else [])
