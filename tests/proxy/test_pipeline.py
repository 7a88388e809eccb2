"""The path of one request, end to end on real sockets."""

from __future__ import annotations

from pathlib import Path

from tests.fakes.engine import FakeEngine
from tests.proxy.rig import CREDENTIAL, KEY, chat, gateway


async def test_an_answer_comes_back_whole_and_is_counted(tmp_path: Path) -> None:
    async with FakeEngine.start() as engine, gateway(tmp_path, engine) as proxy:
        answer = await proxy.post()
        assert answer.status == 200
        assert answer.json()["choices"][0]["message"]["content"] == "Hello from the fake engine."
        event = await proxy.events.get()
        assert (event.status, event.prompt_tokens, event.completion_tokens) == (200, 7, 6)
        assert (event.model, event.provider_model, event.provider) == ("assistant", "qwen", "engine-1")
        assert (event.cost_micros, event.cost_source) == (13, "price")
        sent = engine.requests[0]
        assert sent.json()["model"] == "fake-model"
        assert sent.header("authorization") == f"Bearer {CREDENTIAL}"
        assert KEY.encode() not in sent.head
        assert proxy.inflight == 0


async def test_a_stream_comes_back_event_by_event_without_the_usage_that_was_not_asked_for(
    tmp_path: Path,
) -> None:
    async with FakeEngine.start() as engine, gateway(tmp_path, engine) as proxy:
        answer = await proxy.post(body=chat(stream=True))
        assert answer.whole
        assert answer.body.endswith(b"data: [DONE]\n\n")
        assert b'"usage":{' not in answer.body
        event = await proxy.events.get()
        assert event.stream
        assert (event.prompt_tokens, event.completion_tokens) == (7, 6)
        assert event.ttft_ms is not None
        assert engine.requests[0].json()["stream_options"] == {"include_usage": True}
