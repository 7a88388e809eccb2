"""Two control planes on one database: whatever is written through both at once, database, audit log and
snapshots tell one story."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import msgspec
import pytest
from sqlalchemy import text

from fastllm_control.config import DatabaseSettings
from fastllm_control.database import listener_for
from fastllm_control.publisher import Published, publish
from fastllm_control.repositories import content
from fastllm_control.snapshot import build
from fastllm_control.transaction import CHANNEL
from tests.fakes.control_plane import ControlPlane
from tests.fakes.edge import eventually
from tests.integration.conflicts import (
    Event,
    Sent,
    breaks,
    conflicting,
    names_left,
    prepare,
    send_all,
)

TABLES = {
    "principal": "principals",
    "role": "roles",
    "provider_model": "provider_models",
    "pool": "pools",
    "frontend_model": "frontend_models",
}


class Two(NamedTuple):
    first: ControlPlane
    second: ControlPlane
    heard: list[int]

    async def rows(self, query: str, **values: object) -> list[Any]:
        async with self.first.services.database.read() as session:
            return list(await session.execute(text(query), values))

    async def ids(self) -> dict[str, set[str]]:
        found = {}
        for kind, table in TABLES.items():
            found[kind] = {str(row.id) for row in await self.rows(f"SELECT id FROM {table}")}
        return found

    async def events(self, after: int) -> list[Event]:
        columns = ", ".join(Event.__struct_fields__)
        rows = await self.rows(
            f"SELECT {columns} FROM audit_events WHERE id > :after ORDER BY id", after=after
        )
        return [msgspec.convert(dict(row._mapping), Event) for row in rows]

    async def published(self) -> list[Published]:
        """What each publishes once it has come to the newest version."""
        ((version,),) = await self.rows("SELECT version FROM config")
        found = []
        for plane in (self.first, self.second):
            publisher = plane.services.publisher
            async with asyncio.timeout(20):
                while publisher.current is None or publisher.current.version < version:
                    known = 0 if publisher.current is None else publisher.current.version
                    await publisher.newer_than(known, 20)
            found.append(publisher.current)
        return found


@pytest.fixture
async def two(database_url: str) -> AsyncIterator[Two]:
    """Both listen to the database, and so does the test: notifications come in the order of commits."""
    heard: list[int] = []
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(ControlPlane.start(database_url))
        second = await stack.enter_async_context(ControlPlane.start(database_url, admin="other"))
        await prepare(first)
        listener = await listener_for(DatabaseSettings(database_url=database_url))()
        stack.push_async_callback(listener.close)
        await listener.add_listener(CHANNEL, lambda *event: heard.append(int(event[3])))
        yield Two(first, second, heard)


@pytest.mark.parametrize("seed", range(3))
async def test_fifty_conflicting_writes_at_once(two: Two, seed: int) -> None:
    before = await two.ids()
    ((newest,),) = await two.rows("SELECT max(id) FROM audit_events")
    rules = [str(row.id) for row in await two.rows("SELECT id FROM routing_rules ORDER BY id")]
    sent = await send_all((two.first, two.second), conflicting(seed, rules), f"seed-{seed}")
    events = await two.events(newest)
    assert [one for one in sent if one.answer.status >= 500] == []
    assert sum(one.passed for one in sent) > 10
    assert sum(not one.passed for one in sent) > 5
    _each_write_has_its_event(sent, events)
    await _versions_follow_commits(two, events)
    assert list(breaks(events)) == []
    assert await two.ids() == names_left(events, before)
    await _nothing_is_out_of_place(two)
    await _both_publish_what_is_stored(two, events)


def _each_write_has_its_event(sent: Sequence[Sent], events: Sequence[Event]) -> None:
    by_request: dict[str, list[Event]] = {}
    for event in events:
        by_request.setdefault(event.request_id, []).append(event)
    for one in sent:
        left = by_request.pop(one.request_id, [])
        # Whoever came too late with the very same write changed nothing.
        assert len(left) <= one.passed, (one.call, left)
        assert one.answer.version == (left[0].version if left else None), one.call
    assert by_request == {}


async def _versions_follow_commits(two: Two, events: Sequence[Event]) -> None:
    versions = [event.version for event in events if event.version is not None]
    assert len(versions) > 10
    assert versions == sorted(set(versions))
    await eventually(lambda: versions[-1] in two.heard)
    assert [version for version in two.heard if version >= versions[0]] == versions


async def _nothing_is_out_of_place(two: Two) -> None:
    for owner, position in await two.rows(
        "SELECT frontend_model_id, array_agg(position ORDER BY position) FROM routing_rules GROUP BY 1"
    ):
        assert position == list(range(len(position))), owner
    shared = await two.rows("SELECT name FROM provider_models INTERSECT SELECT name FROM pools")
    assert shared == []
    # Whatever rules say of roles follows the roles: three of them stood in every rule of the beginning.
    names = {row.name for row in await two.rows("SELECT name FROM roles")}
    for (roles,) in await two.rows(
        "SELECT conditions -> 'roles' FROM routing_rules WHERE conditions ? 'roles'"
    ):
        assert set(roles) <= names


async def _both_publish_what_is_stored(two: Two, events: Sequence[Event]) -> None:
    first, second = await two.published()
    assert first.version == second.version == max(event.version or 0 for event in events)
    assert first.hash == second.hash
    assert first.dropped == second.dropped == ()
    async with two.first.services.database.read() as session:
        rows = await content.read(session)
    assert publish(build(rows, two.first.services.secrets.open)).hash == first.hash
    for plane in (two.first, two.second):
        assert plane.services.publisher.failures == 0
        assert not plane.log.events("request failed")


async def test_every_version_is_listed_with_the_events_that_made_it(two: Two) -> None:
    """Once each, though either control plane may have skipped versions that the other one wrote down."""
    rules = [str(row.id) for row in await two.rows("SELECT id FROM routing_rules ORDER BY id")]
    await send_all((two.first, two.second), conflicting(7, rules), "seed-7")
    first, _ = await two.published()
    await _written_down(two, first.version)
    for plane in (two.first, two.second):
        listed = (await plane.call("GET", "/admin/snapshots?limit=200")).rows
        assert [row["version"] for row in listed] == sorted((row["version"] for row in listed), reverse=True)
        shown = [event["id"] for row in reversed(listed) for event in row["events"]]
        assert shown == sorted(set(shown))
        made = await two.rows("SELECT id FROM audit_events WHERE version IS NOT NULL ORDER BY id")
        assert shown == [row.id for row in made]
        assert listed[0]["hash"] == first.hash.hex()


async def _written_down(two: Two, version: int) -> None:
    """Until it is: publishing comes first."""
    async with asyncio.timeout(10):
        while True:
            query = "SELECT 1 FROM published_snapshots WHERE version = :version"
            if await two.rows(query, version=version):
                return
            await asyncio.sleep(0.01)
