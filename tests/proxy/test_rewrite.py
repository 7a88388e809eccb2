"""What a backend is sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.engine import Answer
from tests.proxy.fleet import ILL, fleet
from tests.proxy.rig import MODEL, chat


async def test_each_backend_is_sent_its_own_name_of_the_model(tmp_path: Path) -> None:
    async with fleet(tmp_path, ILL, Answer()) as (proxy, engines):
        proxy.backend(2).entry = type(proxy.backend(2).entry)(
            "backend-2", "provider-2", "model-1", upstream_model=MODEL
        )
        body = b' {"messages":[],  "model" :"assistant", "x":{"model":"assistant"}}'
        assert (await proxy.post(body=body)).status == 200
        assert engines[0].requests[0].body == body.replace(b'"assistant"', b'"fake-model"', 1)
        assert engines[1].requests[0].body == body


@pytest.mark.parametrize(("usage", "asked"), [("inject", True), ("never", False)])
async def test_usage_is_asked_for_unless_the_provider_rejects_that(
    tmp_path: Path, usage: str, asked: bool
) -> None:
    async with fleet(tmp_path, Answer(), providers={"stream_usage": usage}) as (proxy, engines):
        await proxy.post(body=chat(stream=True))
        assert ("stream_options" in engines[0].requests[0].json()) is asked
        event = await proxy.events.get()
        assert event.usage_reported is asked
        assert event.prompt_tokens == (7 if asked else None)


async def test_usage_is_not_asked_for_where_it_does_not_belong(tmp_path: Path) -> None:
    async with fleet(tmp_path, Answer()) as (proxy, engines):
        await proxy.post(body=chat(stream=False))
        await proxy.post(body=chat(stream=None))
        await proxy.post("/v1/messages", body=chat(stream=True, max_tokens=5))
        for request in engines[0].requests:
            assert "stream_options" not in request.json()
        assert (await proxy.events.get(3)).completion_tokens == 6


async def test_a_large_body_arrives_as_it_is(tmp_path: Path) -> None:
    async with fleet(tmp_path, Answer()) as (proxy, engines):
        body = chat(messages=[{"role": "user", "content": "é" * 500_000}], stream=True)
        assert (await proxy.post(body=body)).status == 200
        sent = engines[0].requests[0]
        expected = body.replace(b'"assistant"', b'"fake-model"', 1)
        assert sent.body == b'{"stream_options":{"include_usage":true},' + expected[1:]
