"""One request through all of it: configuration, snapshot, proxy, engine, usage."""

from __future__ import annotations

import asyncio
import json
import time

import aiohttp
import pytest

from tests.fakes.engine import FakeEngine
from tests.fakes.gateway import Gateway

PROMPT = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_reaches_the_engine_and_its_usage_the_control_plane(
    gateway: Gateway, stream: bool
) -> None:
    model = f"one-{stream}"
    body = {"model": model, "messages": PROMPT, "stream": stream}
    headers = {"authorization": f"Bearer {gateway.api_key}"}
    async with FakeEngine.start() as engine, aiohttp.ClientSession() as client:
        await gateway.expose(model, engine.url)
        for url in gateway.proxy_urls:
            async with client.post(f"{url}/v1/chat/completions", json=body, headers=headers) as answer:
                assert answer.status == 200, await answer.text()
                assert await answer.read()
        chats = [one for one in engine.requests if one.path.endswith("/chat/completions")]
        assert [json.loads(one.body)["model"] for one in chats] == ["fake-model", "fake-model"]
        everything = b"".join(name + value for one in engine.requests for name, value in one.headers)
        assert gateway.api_key.encode() not in everything
    deadline = time.monotonic() + 5
    async with gateway.admin() as api:
        while True:
            events = (await api.call("GET", "/admin/usage/events?limit=100", None))["rows"]
            mine = [row for row in events if row["model"] == model]
            if len(mine) == 2:
                break
            assert time.monotonic() < deadline, events
            await asyncio.sleep(0.05)
    assert len({row["replica"] for row in mine}) == 2
    assert all(row["status"] == 200 and row["prompt_tokens"] > 0 and row["stream"] is stream for row in mine)
