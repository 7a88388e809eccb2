"""The fleet on Postgres: since when a replica lacks a version, since when a backend is out of its reach."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fastllm_control.services import fleet
from fastllm_control.services.fleet import FleetAnswer, ReplicaRow
from fastllm_control.transaction import Database
from fastllm_shared.health import BackendView, Ejection, HealthReport, UsageCounters
from tests.fakes.usage import PROXY, make_event, opened, put, rows_of, run

REPORT = HealthReport(
    replica="r1",
    host="h1",
    version="0.1.0",
    started_at=0.0,
    snapshot_version=10,
    config_poll_seconds=5.0,
    health_report_interval_seconds=10.0,
)
REACHED = BackendView("b1", "gpu-1", "qwen", healthy=True, inflight=0)
CUT_OFF = BackendView("b1", "gpu-1", "qwen", healthy=False, inflight=0, ejected=Ejection("probe", "refused"))


async def take(database: Database, **changes: Any) -> None:
    async with database.begin(PROXY) as tx:
        await fleet.take_report(tx.session, msgspec.structs.replace(REPORT, **changes))


async def published(database: Database, version: int, seconds_ago: float) -> None:
    await run(
        database,
        "INSERT INTO published_snapshots (version, at, hash)"
        " VALUES (:version, clock_timestamp() - make_interval(secs => :ago), '')",
        version=version,
        ago=seconds_ago,
    )


async def seen(database: Database) -> FleetAnswer:
    async with database.read() as session:
        return await fleet.describe(session, 5.0, 10.0)


async def only_replica(database: Database) -> ReplicaRow:
    [row] = (await seen(database)).replicas
    return row


async def move_back(database: Database, seconds: float) -> None:
    """Let everything that is stored have happened earlier: time passes without anybody waiting."""
    await run(
        database,
        "UPDATE replicas SET reported_at = reported_at - make_interval(secs => :seconds),"
        " unreachable = (SELECT coalesce(json_object_agg(key, value::float8 - :seconds), '{}')::text"
        " FROM json_each_text(unreachable::json))",
        seconds=seconds,
    )


@pytest.mark.parametrize(
    ("versions", "state"),
    [
        ([], "current"),
        ([(10, 3600)], "current"),
        ([(10, 3600), (11, 1)], "picking_up"),
        ([(10, 3600), (11, 19)], "picking_up"),
        ([(10, 3600), (11, 21)], "stuck"),
        ([(10, 3600), (11, 21), (12, 1)], "stuck"),
        ([(9, 3600), (12, 1)], "picking_up"),
    ],
)
async def test_how_long_it_lacks_a_version(
    database_url: str, versions: list[tuple[int, float]], state: str
) -> None:
    async with opened(database_url) as database:
        await run(database, "UPDATE config SET version = 10")
        for version, seconds_ago in versions:
            await published(database, version, seconds_ago)
        await take(database)
        row = await only_replica(database)
    assert row.state == state
    assert (row.behind_since is None) == (state == "current")


async def test_where_nothing_is_recorded_the_committed_version_tells_its_age(database_url: str) -> None:
    async with opened(database_url) as database:
        [(version,)] = await rows_of(database, "SELECT version FROM config")
        await take(database)
        answer = await seen(database)
    assert answer.newest_snapshot_version == version
    assert answer.newest_snapshot_age_seconds is not None
    assert 0 <= answer.newest_snapshot_age_seconds < 3600
    assert answer.replicas[0].behind_since is not None


async def test_gone_then_listed_for_ten_minutes_then_not(database_url: str) -> None:
    async with opened(database_url) as database:
        await take(database, snapshot_version=2**62)
        assert (await only_replica(database)).state == "current"
        await move_back(database, 31)
        assert (await only_replica(database)).state == "gone"
        await move_back(database, 595)
        assert (await only_replica(database)).state == "gone"
        await move_back(database, 10)
        assert (await seen(database)).replicas == ()
        await take(database, snapshot_version=2**62)
        assert (await only_replica(database)).state == "current"


async def test_usage_before_the_first_report_does_not_make_a_replica(database_url: str) -> None:
    async with opened(database_url) as database:
        await put(database, make_event(replica="r1"))
        assert (await seen(database)).replicas == ()
        await take(database)
        assert [row.replica for row in (await seen(database)).replicas] == ["r1"]
        assert await rows_of(database, "SELECT events_stored FROM replicas") == [(1,)]


async def test_replicas_are_not_merged_and_come_by_host(database_url: str) -> None:
    async with opened(database_url) as database:
        for replica, host in (("r3", "a"), ("r1", "b"), ("r2", "a")):
            await take(database, replica=replica, host=host)
        assert [row.replica for row in (await seen(database)).replicas] == ["r2", "r3", "r1"]


async def test_a_partition_is_suspected_once_reports_keep_disagreeing(database_url: str) -> None:
    async with opened(database_url) as database:
        await take(database, replica="r1", backends=(CUT_OFF,))
        await take(database, replica="r2", backends=(REACHED,))
        assert (await seen(database)).partition_suspected == ()
        for _ in range(2):
            await move_back(database, 10.5)
            await take(database, replica="r1", backends=(CUT_OFF,))
            await take(database, replica="r2", backends=(REACHED,))
        [suspected] = (await seen(database)).partition_suspected
        assert (suspected.unreachable_from, suspected.reachable_from) == (("r1",), ("r2",))
        await take(database, replica="r1", backends=(REACHED,))
        await take(database, replica="r1", backends=(CUT_OFF,))
        assert (await seen(database)).partition_suspected == ()


async def test_a_gap_shows_once_a_replica_is_gone_with_its_queue(database_url: str) -> None:
    events = [make_event(replica="r1", sequence=n) for n in (1, 2)]
    async with opened(database_url) as database:
        await put(database, *events)
        await take(database, usage=UsageCounters(served=5, stored=2, queued=3))

        async def gaps() -> list[tuple[str, int]]:
            async with database.read() as session:
                return [(gap.replica, gap.missing) for gap in await fleet.usage_gaps(session)]

        assert await gaps() == []
        await move_back(database, 31)
        assert await gaps() == [("r1", 3)]
        await move_back(database, 8 * 86_400)
        assert await gaps() == []
