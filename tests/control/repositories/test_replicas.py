"""SQL of the fleet."""

from __future__ import annotations

import time

import msgspec

from fastllm_control.fleet import Publication
from fastllm_control.repositories import replicas
from fastllm_shared.health import BackendView, Ejection, HealthReport, LoopView
from tests.fakes.usage import PROXY, opened, rows_of, run

REPORT = HealthReport(
    replica="r1",
    host="h1 \ud55c",
    version="0.1.0",
    started_at=12.5,
    snapshot_version=2**62,
    config_poll_seconds=5.0,
    health_report_interval_seconds=10.0,
    backends=(BackendView("b1", "gpu-1", "qwen", False, 0, Ejection("traffic", "status", 5.5)),),
    loops={"probe": LoopView(1.5, 10.0, 2)},
    unattributed={"no_key": 1},
)


async def test_the_clock_is_the_databases(database_url: str) -> None:
    async with opened(database_url) as database, database.read() as session:
        assert abs(await replicas.now(session) - time.time()) < 60


async def test_a_report_comes_back_whole(database_url: str) -> None:
    async with opened(database_url) as database:
        async with database.begin(PROXY) as tx:
            assert await replicas.unreachable_before(tx.session, "r1") == {}
            await replicas.keep_report(tx.session, REPORT, {"b1": 7.25}, 100.5)
        async with database.read() as session:
            [known] = await replicas.reported_since(session, 100.5)
            assert await replicas.reported_since(session, 100.6) == []
        async with database.begin(PROXY) as tx:
            assert await replicas.unreachable_before(tx.session, "r1") == {"b1": 7.25}
    assert (known.report, known.reported_at, known.unreachable) == (REPORT, 100.5, {"b1": 7.25})


async def test_the_first_version_after_each(database_url: str) -> None:
    async with opened(database_url) as database:
        for version, at in ((10, 100), (12, 120), (15, 150)):
            insert = "INSERT INTO published_snapshots (version, at, hash) VALUES (:v, to_timestamp(:at), '')"
            await run(database, insert, v=version, at=at)
        async with database.read() as session:
            assert await replicas.newest_publication(session) == Publication(15, 150.0)
            found = await replicas.first_after(session, [0, 10, 11, 12, 14, 15, 99, 10])
            assert await replicas.first_after(session, []) == {}
    assert found == {0: 100.0, 10: 120.0, 11: 120.0, 12: 150.0, 14: 150.0}


async def test_rejections_add_up_within_their_minute(database_url: str) -> None:
    async with opened(database_url) as database:
        for at, counts in ((61.0, {"a": 1, "b": 2, "c": 0}), (119.0, {"a": 5}), (120.0, {"a": 7})):
            async with database.begin(PROXY) as tx:
                await replicas.count_rejections(tx.session, "r1", counts, at)
        query = "SELECT extract(epoch FROM minute)::int, reason, count FROM gateway_rejections ORDER BY 1, 2"
        assert await rows_of(database, query) == [(60, "a", 6), (60, "b", 2), (120, "a", 7)]


async def test_only_those_long_unheard_of_are_forgotten(database_url: str) -> None:
    async with opened(database_url) as database:
        async with database.begin(PROXY) as tx:
            for replica, at in (("old", 99.0), ("new", 100.0)):
                report = msgspec.structs.replace(REPORT, replica=replica)
                await replicas.keep_report(tx.session, report, {}, at)
            await replicas.forget_before(tx.session, 100.0)
        assert await rows_of(database, "SELECT replica FROM replicas") == [("new",)]
