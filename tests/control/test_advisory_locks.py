"""Advisory locks against a real Postgres."""

from __future__ import annotations

import asyncio

import pytest

from fastllm_control.access import Actor
from fastllm_control.advisory_locks import AdvisoryLock, take
from fastllm_control.transaction import Database

ACTOR = Actor(name="tests", via="command")


def test_each_has_a_key_of_its_own_that_postgres_can_hold() -> None:
    keys = [int(lock) for lock in AdvisoryLock.__members__.values()]
    assert len(set(keys)) == len(keys)
    assert all(0 < key < 2**63 for key in keys)


async def test_it_is_held_until_the_transaction_ends_and_keeps_nobody_from_another(
    database: Database,
) -> None:
    async with database.begin(ACTOR) as second:
        async with database.begin(ACTOR) as first:
            await take(first.session, AdvisoryLock.ADMINISTERING)
            await take(second.session, AdvisoryLock.TARGET_NAMES)
            waiting = asyncio.create_task(take(second.session, AdvisoryLock.ADMINISTERING))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(waiting), 0.2)
        await asyncio.wait_for(waiting, 5)
