"""Two processes `fastllm control` on one database, both written to at once; one is killed while it works."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

import aiohttp
import pytest

from fastllm_control.postgres import free_ports
from fastllm_shared.snapshot import decode_snapshot
from tests.fakes.command import SECRETS, fastllm, started

PROXY = {"authorization": f"Bearer {SECRETS['FASTLLM_PROXY_TOKEN']}"}


class Process(NamedTuple):
    url: str
    process: asyncio.subprocess.Process
    http: aiohttp.ClientSession

    async def create(self, kind: str, name: str, key: str) -> tuple[int, int]:
        """Status and version; (0, 0) when it did not answer."""
        headers = {"authorization": f"Bearer {key}"}
        url, body = f"{self.url}/admin/{kind}", {"name": name}
        try:
            async with self.http.post(url, json=body, headers=headers) as answer:
                return answer.status, int(answer.headers.get("x-fastllm-snapshot-version", 0))
        except aiohttp.ClientError:
            return 0, 0

    async def rows(self, path: str, key: str) -> list[dict[str, Any]]:
        headers = {"authorization": f"Bearer {key}"}
        async with self.http.get(f"{self.url}{path}", headers=headers) as answer:
            found: list[dict[str, Any]] = (await answer.json())["rows"]
            return found

    async def snapshot(self, at_least: int) -> bytes:
        """What it publishes, once it is as new as that."""
        async with asyncio.timeout(20):
            while True:
                async with self.http.get(f"{self.url}/snapshot", headers=PROXY) as answer:
                    wire = await answer.read()
                if answer.status == 200 and decode_snapshot(wire).version >= at_least:
                    return wire
                await asyncio.sleep(0.02)


@asynccontextmanager
async def control(url: str, http: aiohttp.ClientSession) -> AsyncIterator[Process]:
    (port,) = free_ports(1)
    process = await started("control", "--port", str(port), url=url)
    made = Process(f"http://127.0.0.1:{port}", process, http)
    try:
        await _answers(made)
        yield made
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


async def _answers(process: Process) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                async with process.http.get(f"{process.url}/readyz") as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.05)


@pytest.fixture
async def both(database_url: str) -> AsyncIterator[tuple[Process, Process, str]]:
    """Both, and an administrator's key."""
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession(trust_env=False))
        first = await stack.enter_async_context(control(database_url, http))
        second = await stack.enter_async_context(control(database_url, http))
        assert (await fastllm("set-password", url=database_url, typed="a long one\n")).code == 0
        made = await fastllm("create-key", "--principal", "admin", "--scope", "admin", url=database_url)
        yield first, second, made.out.strip()


async def _burst(processes: Sequence[Process], key: str, mark: str) -> list[tuple[str, int, int]]:
    """(name, status, version): every name is asked for through each of the processes."""

    async def ask(number: int) -> tuple[str, int, int]:
        kind = ("provider-models", "frontend-models", "principals")[number // 2 % 3]
        name = f"{mark}-{number // 2}"
        return name, *(await processes[number % 2].create(kind, name, key))

    return await asyncio.gather(*(ask(number) for number in range(50)))


async def test_whatever_was_answered_is_so_and_both_publish_the_same(
    both: tuple[Process, Process, str],
) -> None:
    first, second, key = both
    done = await _burst((first, second), key, "calm")
    assert sorted(status for _, status, _ in done) == [201] * 25 + [409] * 25
    newest = max(version for _, _, version in done)
    assert await first.snapshot(newest) == await second.snapshot(newest)

    bursting = asyncio.create_task(_burst((first, second), key, "killed"))
    await asyncio.sleep(0.05)
    second.process.kill()
    done += await bursting
    assert {status for _, status, _ in done} <= {201, 409, 0}
    await _one_story_is_told(first, key, done)


async def _one_story_is_told(plane: Process, key: str, done: Sequence[tuple[str, int, int]]) -> None:
    rows = await plane.rows("/admin/audit?limit=200", key)
    events = [row for row in reversed(rows) if row["via"] == "key"]
    versions = [event["version"] for event in events]
    assert versions == sorted(set(versions))
    told = {event["target_name"]: event["version"] for event in events}
    assert len(told) == len(events)
    for name, status, version in done:
        assert status != 201 or told[name] == version
    listed = {
        row["name"]
        for kind in ("provider-models", "frontend-models", "principals")
        for row in await plane.rows(f"/admin/{kind}?limit=200", key)
    }
    assert listed == {*told, "admin"}
    snapshot = decode_snapshot(await plane.snapshot(versions[-1]))
    kinds = (snapshot.provider_models, snapshot.frontend_models, snapshot.principals)
    assert {entry.name for entries in kinds for entry in entries} == listed
