"""The path of one request, end to end on real sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.fakes.engine import Answer, FakeEngine
from tests.proxy.rig import CREDENTIAL, KEY, MAX_BODY_BYTES, chat, gateway, snapshot


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


@pytest.mark.parametrize(
    ("body", "headers", "expected"),
    [
        (chat(), {"authorization": "Bearer sk-wrong"}, (401, "invalid_api_key")),
        (b"[]", {}, (400, "invalid_json")),
        (b'{"x":1}', {}, (400, "missing_required_parameter")),
        (b'{"model":"assistant","mod\\u0065l":"other"}', {}, (400, "ambiguous_parameter")),
        (chat("not-granted"), {}, (403, "model_access_denied")),
        (chat("qwen"), {}, (404, "model_not_found")),
        (chat("nothing"), {}, (404, "model_not_found")),
        (chat(), {"x-fastllm-hop": "4"}, (400, "too_many_hops")),
        (b"x" * (MAX_BODY_BYTES + 1), {}, (413, "request_too_large")),
        (chat(), {"content-encoding": "br"}, (415, "unsupported_encoding")),
    ],
    ids=lambda value: repr(value)[:40],
)
async def test_refusals(
    tmp_path: Path, body: bytes, headers: dict[str, str], expected: tuple[int, str]
) -> None:
    async with FakeEngine.start() as engine, gateway(tmp_path, engine) as proxy:
        answer = await proxy.post(body=body, headers=headers)
        assert (answer.status, answer.code) == expected
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        assert engine.requests == []
        assert proxy.metrics.rejections == {expected[1]: 1}
        assert proxy.metrics.unattributed == ({expected[1]: 1} if expected[0] == 401 else {})
        rowed = [event.refusal for event in proxy.events.all]
        assert rowed == (["authorisation"] if expected[0] == 403 else [])
        assert f'"code":"{expected[1]}"' in proxy.log_text()


async def test_a_fault_of_our_own_is_a_500_and_settled_once(tmp_path: Path) -> None:
    async with FakeEngine.start() as engine, gateway(tmp_path, engine) as proxy:
        proxy.backend(1).entry = None
        answer = await proxy.post()
        assert (answer.status, answer.code) == (500, "internal_error")
        assert b"Traceback" not in answer.body
        assert [event.status for event in proxy.events.all] == [500]
        assert proxy.inflight == 0


async def test_a_request_is_served_from_the_snapshot_that_it_began_with(tmp_path: Path) -> None:
    async with FakeEngine.start() as engine, gateway(tmp_path, engine) as proxy:
        engine.script("/chat/completions", Answer(delay_to_head=0.2))
        asking = asyncio.ensure_future(proxy.post())
        await engine.arrived(1)
        proxy.store.accept(snapshot([], [], version=2))
        assert (await asking).status == 200
        assert (await proxy.post()).code == "no_backend"


async def test_headers_in_both_directions(tmp_path: Path) -> None:
    async with FakeEngine.start() as engine, gateway(tmp_path, engine) as proxy:
        engine.script(
            "/chat/completions", Answer(headers=(("server", "uvicorn"), ("x-request-id", "engine's")))
        )
        headers = {
            "x-request-id": "mine-1",
            "traceparent": "00-abc-def-01",
            "x-api-key": "sk-other",
            "cookie": "a=b",
            "accept-encoding": "gzip, br",
            "x-fastllm-hop": "1",
        }
        answer = await proxy.post("/v1/chat/completions/?beta=true", headers=headers)
        assert answer.headers["x-request-id"] == "mine-1"
        assert "server" not in answer.headers
        sent = engine.requests[0]
        assert sent.target == "/v1/chat/completions?beta=true"
        assert sent.header("x-request-id") == "mine-1"
        assert sent.header("traceparent") == "00-abc-def-01"
        assert sent.header("accept-encoding") == "identity"
        assert sent.header("x-fastllm-hop") == "2"
        assert sent.header("x-api-key") is None
        assert sent.header("cookie") is None
        assert sent.header("host") == f"127.0.0.1:{engine.port}"
        assert KEY.encode() not in sent.head
        assert "beta" not in proxy.log_text()
        event = await proxy.events.get()
        assert event.request_id == "mine-1"


async def test_two_dialects_and_other_endpoints(tmp_path: Path) -> None:
    async with FakeEngine.start() as engine, gateway(tmp_path, engine) as proxy:
        message = await proxy.post("/v1/messages", chat(max_tokens=5))
        assert message.json()["type"] == "message"
        refused = await proxy.post("/v1/messages", chat("nothing"))
        assert refused.json()["type"] == "error"
        embedded = await proxy.post("/v1/embeddings", chat(input="x"))
        assert embedded.json()["object"] == "list"
        text = await proxy.post("/completions", chat(prompt="x"))
        assert text.json()["object"] == "text_completion"
        labels = [event.endpoint for event in proxy.events.all]
        assert labels == ["/messages", "/embeddings", "/completions"]
        assert all(event.usage_reported for event in proxy.events.all)


async def test_many_at_once_with_some_who_leave(tmp_path: Path) -> None:
    async with FakeEngine.start() as engine, gateway(tmp_path, engine) as proxy:
        engine.script("/chat/completions", Answer(gap=0.01))

        async def one(number: int) -> None:
            client = await proxy.connect()
            client.send(body=chat(stream=True, x=number))
            await client.head()
            if number % 3:
                assert (await client.piece()).startswith(b"data: ")
                client.writer.transport.abort()
            else:
                while await client.piece():
                    pass
            client.close()

        await asyncio.gather(*(one(number) for number in range(60)))
        await proxy.events.get(60)
        assert sorted(event.status for event in proxy.events.all) == [200] * 20 + [499] * 40
        assert proxy.inflight == 0
