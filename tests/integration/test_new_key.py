"""How soon a key counts: made, and every proxy takes it; revoked, and every proxy refuses it."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.fakes.engine import FakeEngine
from tests.fakes.up import RunningUp

MODEL = "assistant"
SECONDS = 1.0
ROUNDS = 5


class Operator:
    """The admin API by session, and the proxies by key."""

    def __init__(self, session: aiohttp.ClientSession, ready: dict[str, Any]) -> None:
        self._session = session
        self._control: str = ready["control_url"]
        self._admin: dict[str, str] = ready["admin"]
        self.proxies: list[str] = ready["proxy_urls"]

    async def login(self) -> None:
        await self.call("POST", "/login", self._admin, expected=200)

    async def call(self, method: str, path: str, body: Any = None, *, expected: int = 201) -> Any:
        async with self._session.request(method, self._control + path, json=body) as response:
            text = await response.text()
            assert response.status == expected, f"{method} {path}: {response.status} {text}"
            return json.loads(text)

    async def serve(self, engine_url: str) -> str:
        """Exposes an engine as `MODEL`; returns the id of a principal that may name it."""
        await self.call("POST", "/admin/providers", {"name": "gpu", "kind": "static", "api_base": engine_url})
        backends = [{"provider": "gpu", "upstream_model": "fake-model"}]
        await self.call("POST", "/admin/provider-models", {"name": "qwen", "backends": backends})
        await self.call("POST", "/admin/frontend-models", {"name": MODEL, "targets": [{"target": "qwen"}]})
        principal = (await self.call("POST", "/admin/principals", {"name": "team"}))["id"]
        await self.call("POST", "/admin/roles", {"name": "team-models"})
        grant = {"verb": "model:invoke", "resource": f"model/{MODEL}"}
        await self.call("POST", "/admin/roles/team-models/permissions", grant)
        await self.call("POST", f"/admin/principals/{principal}/roles", {"role": "team-models"})
        return str(principal)

    async def until(self, proxy: str, key: str, status: int) -> float:
        """The monotonic time at which a proxy first answers a request under `key` with `status`."""
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
        headers = {"authorization": f"Bearer {key}"}
        async with asyncio.timeout(10):
            while True:
                async with self._session.post(
                    proxy + "/v1/chat/completions", json=body, headers=headers
                ) as response:
                    await response.read()
                if response.status == status:
                    return time.monotonic()
                await asyncio.sleep(0.005)


@pytest.fixture
async def operator(tmp_path: Path) -> AsyncIterator[Operator]:
    with RunningUp(tmp_path / "data", "--proxies", "2") as up:
        ready = await asyncio.to_thread(up.ready)
        jar = aiohttp.CookieJar(unsafe=True)
        async with aiohttp.ClientSession(cookie_jar=jar) as session:
            built = Operator(session, ready)
            await built.login()
            yield built
        up.members()


async def test_a_key_counts_within_a_second_at_every_proxy(operator: Operator) -> None:
    taken: list[float] = []
    async with FakeEngine.start() as engine:
        principal = await operator.serve(engine.url)
        assert len(operator.proxies) == 2
        for number in range(ROUNDS):
            made = await operator.call(
                "POST", "/admin/keys", {"principal_id": principal, "name": f"key-{number}"}
            )
            made_at = time.monotonic()
            accepted = await asyncio.gather(
                *(operator.until(proxy, made["key"], 200) for proxy in operator.proxies)
            )
            await operator.call("DELETE", f"/admin/keys/{made['id']}", expected=200)
            revoked_at = time.monotonic()
            refused = await asyncio.gather(
                *(operator.until(proxy, made["key"], 401) for proxy in operator.proxies)
            )
            taken += [at - made_at for at in accepted] + [at - revoked_at for at in refused]
    assert max(taken) < SECONDS, f"median {statistics.median(taken):.3f} s, worst {max(taken):.3f} s"
