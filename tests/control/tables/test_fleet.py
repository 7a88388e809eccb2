"""The fleet tables in the migrated schema."""

from __future__ import annotations

from fastllm_control.repositories.published_snapshots import record
from tests.fakes.usage import opened, rows_of, run


async def test_a_replica_known_from_its_usage_only(database_url: str) -> None:
    async with opened(database_url) as database:
        await run(database, "INSERT INTO replicas (replica, seen_at) VALUES ('r1', now())")
        query = "SELECT reported_at, report, unreachable, events_stored, highest_sequence FROM replicas"
        assert await rows_of(database, query) == [(None, None, "{}", 0, 0)]


async def test_a_publication_knows_when_it_was_made(database_url: str) -> None:
    async with opened(database_url) as database:
        async with database.engine.begin() as connection:
            await record(connection, 7, b"hash")
        query = "SELECT version, at > now() - interval '1 minute', audit_ids, delta FROM published_snapshots"
        assert await rows_of(database, query) == [(7, True, [], None)]
