"""SQL of the ingest: what is inserted, what is folded, and in which order rows are locked."""

from __future__ import annotations

import asyncio
import datetime
import random
from uuid import UUID

from fastllm_control.ingest import columns_of
from fastllm_control.repositories.usage_events import Fresh, count_stored, insert_new, touch_keys
from fastllm_control.transaction import Database
from fastllm_shared.ids import uuid7
from tests.fakes.usage import (
    NOON,
    PROXY,
    batch_of,
    make_event,
    make_key,
    make_principal,
    opened,
    put,
    rows_of,
    run,
)

MINUTE = datetime.timedelta(minutes=1)


def fresh(
    replica: str = "r1", key: UUID | None = None, minute: int = 0, events: int = 1, highest: int = 1
) -> Fresh:
    return Fresh(replica, key, events, highest, NOON + minute * MINUTE)


async def touched(database: Database, *groups: Fresh) -> list[int | None]:
    """Minutes past noon at which each key was last used, in the order of ids."""
    async with database.begin(PROXY) as tx:
        await touch_keys(tx.session, groups)
    found = await rows_of(database, "SELECT last_used_at FROM api_keys ORDER BY id")
    return [None if row[0] is None else (row[0] - NOON) // MINUTE for row in found]


async def test_only_what_is_new_comes_back_by_replica_and_key(database_url: str) -> None:
    key = uuid7()
    long_ago = NOON.timestamp() - 86_400 * 365
    old = make_event(long_ago, key_id=str(key), sequence=9)
    events = [
        make_event(long_ago + 30, key_id=str(key), sequence=3),
        make_event(long_ago + 90, key_id=str(key), sequence=2),
        make_event(long_ago, sequence=1),
        make_event(long_ago, replica="replica-2", sequence=8),
    ]
    async with opened(database_url) as database:
        await put(database, old)
        async with database.begin(PROXY) as tx:
            found = await insert_new(tx.session, columns_of(batch_of(old, *events)).columns)
    past = NOON - datetime.timedelta(days=365)
    assert sorted(found, key=str) == sorted(
        [
            Fresh("replica-1", key, 2, 3, past + MINUTE),
            Fresh("replica-1", None, 1, 1, past),
            Fresh("replica-2", None, 1, 8, past),
        ],
        key=str,
    )


async def test_keys_move_forward_only_and_unknown_ones_are_passed_over(database_url: str) -> None:
    owner, one, two = uuid7(), UUID(int=1), UUID(int=2)
    async with opened(database_url) as database:
        await make_principal(database, owner, "team-a")
        await make_key(database, one, owner)
        await make_key(database, two, owner)
        assert await touched(database) == [None, None]
        assert await touched(database, fresh(), fresh(key=uuid7())) == [None, None]
        assert await touched(database, fresh(key=one, minute=5), fresh("r2", one, 3)) == [5, None]
        assert await touched(database, fresh(key=one, minute=4), fresh(key=two, minute=1)) == [5, 1]
        assert await touched(database, fresh(key=one, minute=6)) == [6, 1]


async def test_a_key_that_is_up_to_date_is_not_written(database_url: str) -> None:
    owner, key = uuid7(), UUID(int=1)
    async with opened(database_url) as database:
        await make_principal(database, owner, "team-a")
        await make_key(database, key, owner)
        await touched(database, fresh(key=key, minute=5))
        before = await rows_of(database, "SELECT xmin::text FROM api_keys")
        await touched(database, fresh(key=key, minute=5))
        assert await rows_of(database, "SELECT xmin::text FROM api_keys") == before


async def test_keys_are_locked_in_one_order_whoever_comes(database_url: str) -> None:
    owner, keys = uuid7(), [UUID(int=n) for n in range(1, 21)]
    shuffle = random.Random(3)
    async with opened(database_url) as database:
        await make_principal(database, owner, "team-a")
        for key in shuffle.sample(keys, 20):
            await make_key(database, key, owner)
        rounds = [[fresh(key=key, minute=n) for key in shuffle.sample(keys, 20)] for n in range(30)]
        await asyncio.gather(*(touched(database, *groups) for groups in rounds))
        assert await touched(database) == [29] * 20


async def test_a_principal_that_is_deleted_meanwhile_is_no_obstacle(database_url: str) -> None:
    owner, key = uuid7(), uuid7()
    async with opened(database_url) as database:
        await make_principal(database, owner, "team-a")
        await make_key(database, key, owner)
        deleting = run(database, "DELETE FROM principals")
        storing = [put(database, make_event(key_id=str(key), principal_id=str(owner))) for _ in range(5)]
        answers, _ = await asyncio.gather(asyncio.gather(*storing), deleting)
    assert [answer.stored for answer in answers] == [1] * 5


async def test_counts_of_replicas_add_up(database_url: str) -> None:
    async with opened(database_url) as database:
        for groups in (
            [fresh("b", events=2, highest=7), fresh("a", uuid7(), events=1, highest=3), fresh("a", events=4)],
            [fresh("a", events=1, highest=2)],
            [],
        ):
            async with database.begin(PROXY) as tx:
                await count_stored(tx.session, groups)
        query = "SELECT replica, events_stored, highest_sequence FROM replicas ORDER BY replica"
        assert await rows_of(database, query) == [("a", 6, 3), ("b", 2, 7)]
