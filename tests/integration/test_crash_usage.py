"""Control plane and database stopped, then killed, under traffic: clients notice nothing, and the usage made
meanwhile arrives once each when they are back."""

from __future__ import annotations

import asyncio
import collections
import itertools
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from fastllm_control.demo import AdminApi
from fastllm_control.ready_file import Login
from tests.fakes.engine import FakeEngine
from tests.fakes.process_table import family
from tests.fakes.up import RunningUp

MODEL = "assistant"
KILLED_IN_TURN = (("postgres", 1.0), ("control", 0.37), ("postgres", 0.61), ("control", 0.0))
WORKERS = 4
PAUSE_SECONDS = 0.02
STOPPED_SECONDS = 1.5
NOTICEABLE_SECONDS = 1.0
"""More than the machine's own hiccups; waiting for either of the stopped would take longer than the stop."""


@pytest.fixture
def up(tmp_path: Path) -> Iterator[RunningUp]:
    with RunningUp(tmp_path / "data", "--health-report-interval", "1", "--config-poll", "1") as running:
        yield running
        running.members()


def admin(ready: dict[str, Any]) -> AdminApi:
    return AdminApi(ready["control_url"], Login(**ready["admin"]))


async def expose(api: AdminApi, engine_url: str) -> None:
    await api.call("POST", "/admin/providers", {"name": "gpu", "kind": "static", "api_base": engine_url})
    backends = [{"provider": "gpu", "upstream_model": "fake-model"}]
    await api.call("POST", "/admin/provider-models", {"name": "qwen", "backends": backends})
    await api.call("POST", "/admin/frontend-models", {"name": MODEL, "targets": [{"target": "qwen"}]})


class Traffic:
    """Clients that ask again and again. Each request bears an id of its own."""

    def __init__(self, session: aiohttp.ClientSession, ready: dict[str, Any]) -> None:
        self._session = session
        self._url = ready["proxy_url"] + "/v1/chat/completions"
        self._authorization = f"Bearer {ready['api_key']}"
        self._numbers = itertools.count(1)
        self._stopping = False
        self.statuses: collections.Counter[int] = collections.Counter()
        self.sent: list[str] = []
        self.slowest = 0.0

    async def ask(self) -> int:
        request_id = f"request-{next(self._numbers)}"
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
        headers = {"authorization": self._authorization, "x-request-id": request_id}
        began = time.monotonic()
        async with self._session.post(self._url, json=body, headers=headers) as answer:
            await answer.read()
        self.slowest = max(self.slowest, time.monotonic() - began)
        self.statuses[answer.status] += 1
        self.sent.append(request_id)
        return answer.status

    async def until_served(self) -> None:
        """Ask until the proxy knows the model. Before that there is nothing to count: 404 makes no event."""
        deadline = time.monotonic() + 20
        while (status := await self.ask()) != 200:
            assert time.monotonic() < deadline, status
            await asyncio.sleep(0.02)
        self.statuses.clear()
        self.slowest = 0.0
        self.sent = self.sent[-1:]

    @asynccontextmanager
    async def flowing(self) -> AsyncIterator[None]:
        async def one_client() -> None:
            while not self._stopping:
                await self.ask()
                await asyncio.sleep(PAUSE_SECONDS)

        async with asyncio.TaskGroup() as clients:
            for _ in range(WORKERS):
                clients.create_task(one_client())
            try:
                yield
            finally:
                self._stopping = True


async def stored(api: AdminApi) -> collections.Counter[str]:
    """How often each request's id is stored."""
    found: collections.Counter[str] = collections.Counter()
    after = ""
    while True:
        page = await api.call("GET", f"/admin/usage/events?limit=1000{after}", None)
        found.update(row["request_id"] for row in page["rows"])
        if page["next"] is None:
            return found
        after = f"&after={page['next']}"


async def all_stored(api: AdminApi, count: int) -> collections.Counter[str]:
    """The same once there are as many as `count`, and after the time of two batches more."""
    deadline = time.monotonic() + 40
    while (found := await stored(api)).total() < count:
        assert time.monotonic() < deadline, f"{found.total()} of {count} events are stored"
        await asyncio.sleep(0.2)
    await asyncio.sleep(2.2)
    return await stored(api)


async def back(up: RunningUp, session: aiohttp.ClientSession, dead: dict[str, int]) -> dict[str, Any]:
    """The ready file once other processes stand in for the `dead` ones and the control plane answers."""
    for name, pid in dead.items():
        ready = await asyncio.to_thread(up.ready_unlike, pid, name)
    deadline = time.monotonic() + 40
    while True:
        try:
            async with session.get(ready["control_url"] + "/readyz") as answer:
                if answer.status == 200:
                    return ready
        except aiohttp.ClientError:
            pass
        assert time.monotonic() < deadline, up.output
        await asyncio.sleep(0.05)


async def test_stopped_then_killed(up: RunningUp) -> None:
    ready = await asyncio.to_thread(up.ready)
    control, postgres = ready["pids"]["control"], ready["pids"]["postgres"]
    async with FakeEngine.start() as engine, aiohttp.ClientSession() as session, admin(ready) as api:
        await expose(api, engine.url)
        traffic = Traffic(session, ready)
        await traffic.until_served()
        async with traffic.flowing():
            await asyncio.sleep(1.2)  # a batch is acknowledged before, and one is under way as they stop
            victims = [control, *family(postgres)]
            for pid in victims:
                os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(STOPPED_SECONDS)
            asked_by_then = len(traffic.sent)
            for pid in victims:
                os.kill(pid, signal.SIGKILL)
            await back(up, session, {"control": control, "postgres": postgres})
            await asyncio.sleep(0.5)
        up.members()
        assert set(traffic.statuses) == {200}
        assert traffic.slowest < NOTICEABLE_SECONDS
        found = await all_stored(api, len(traffic.sent))
        assert 100 < asked_by_then < len(traffic.sent)
        assert found == collections.Counter(traffic.sent)
        await counters_add_up(api, len(traffic.sent))


async def counters_add_up(api: AdminApi, sent: int) -> None:
    """The proxy says the same: all of it stored, nothing dropped, no gap."""
    expected = {"served": sent, "stored": sent, "queued": 0, "spooled": 0, "dropped": 0}
    deadline = time.monotonic() + 20
    while True:
        [replica] = (await api.call("GET", "/admin/fleet", None))["replicas"]
        if replica["usage"] == expected:
            break
        assert time.monotonic() < deadline, replica["usage"]
        await asyncio.sleep(0.2)
    assert (await api.call("GET", "/admin/health", None))["usage_gaps"] == []


async def test_each_killed_in_turn(up: RunningUp) -> None:
    """Whatever the moment: before the commit, or between the commit and its acknowledgement."""
    ready = await asyncio.to_thread(up.ready)
    async with FakeEngine.start() as engine, aiohttp.ClientSession() as session, admin(ready) as api:
        await expose(api, engine.url)
        traffic = Traffic(session, ready)
        await traffic.until_served()
        async with traffic.flowing():
            for name, after_seconds in (
                ("postgres", 1.0),
                ("control", 0.37),
                ("postgres", 0.61),
                ("control", 0),
            ):
                await asyncio.sleep(after_seconds)
                pid = ready["pids"][name]
                os.kill(pid, signal.SIGKILL)
                ready = await back(up, session, {name: pid})
        up.members()
        assert set(traffic.statuses) == {200}
        found = await all_stored(api, len(traffic.sent))
    assert found == collections.Counter(traffic.sent)
