"""Backends that refuse the gateway's credential or do not have the model: clients see the other one's answer,
and where all refuse not one word of theirs."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from pathlib import Path

import pytest

from fastllm_proxy.metrics import Metrics
from tests.fakes.engine import Answer, FakeEngine
from tests.proxy.fleet import CHAT, closed_port, fleet, hits
from tests.proxy.rig import CREDENTIAL, KEY, MODEL, UPSTREAM_MODEL, Gateway, chat, gateway

CANARY = "canary"
"""Every word of the provider's has it: headers, reason, body."""


def _raw(status: int, body: bytes, content_type: str = "application/json", extra: str = "") -> Answer:
    """With a reason phrase and headers of the provider's own."""
    lines = (
        f"HTTP/1.1 {status} {CANARY}-reason",
        f"content-type: {content_type}",
        f"x-request-{CANARY}: {CANARY}-header",
        f"openai-organization: {CANARY}-organization",
        f'www-authenticate: Basic realm="{CANARY}"',
        "retry-after: 77",
        f"content-length: {len(body)}",
    )
    return Answer(raw="\r\n".join((*lines, *extra.split())).encode() + b"\r\n\r\n" + body)


def _error(message: str, kind: str = f"{CANARY}_error", code: object = None) -> bytes:
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}}).encode()


def _event(error: dict[str, object]) -> Answer:
    """A stream that has a status of 200 and begins with an error."""
    text = b": %b\n\nevent: error\ndata: %b\n\n" % (CANARY.encode(), json.dumps({"error": error}).encode())
    return _raw(200, text, "text/event-stream")


STATUSES = {
    "401": _raw(401, _error(f"Incorrect API key {CREDENTIAL} for {CANARY}", code="invalid_api_key")),
    "402": _raw(402, _error(f"{CANARY} has no credit left")),
    "403": _raw(403, f"<html>{CANARY} is forbidden</html>".encode(), "text/html"),
    "404 of vLLM": _raw(404, _error(f"The model `{CANARY}` does not exist.", "NotFoundError", 404)),
    "404 of llama.cpp": _raw(404, _error(f"model '{CANARY}' not found", "not_found_error", 404)),
    "404 of OpenAI": _raw(404, _error(f"no access for {CANARY}", code="model_not_found")),
    "404 of Ollama": _raw(404, _error(f'model "{CANARY}" not found, try pulling it first', "api_error")),
    "404 of Anthropic": _raw(404, _error(f"model: {CANARY}", "not_found_error")),
    "404, compressed": _raw(
        404,
        gzip.compress(_error(f"The model `{CANARY}` does not exist.")),
        extra="content-encoding:gzip",
    ),
}
EVENTS = {
    "event with 401": _event({"message": f"Unauthorized {CANARY} {CREDENTIAL}", "code": 401}),
    "event of Anthropic": _event({"type": "authentication_error", "message": CANARY}),
    "event without model": _event(
        {"message": f"The model `{CANARY}` does not exist.", "type": "NotFoundError", "code": 404}
    ),
}
REJECTIONS = STATUSES | EVENTS


async def raw_answer(proxy: Gateway, path: str, body: bytes) -> bytes:
    """Every byte that the client got."""
    client = await proxy.connect()
    try:
        client.send(path, body, {"connection": "close"})
        async with asyncio.timeout(10):
            return await client.reader.read()
    finally:
        client.close()


def upstream_counts(metrics: Metrics, backend: str) -> dict[str, int]:
    return {label: count for (name, label), count in metrics.upstream.items() if name == backend}


@pytest.mark.parametrize("name", REJECTIONS)
async def test_from_one_of_two_every_client_sees_the_others_answer(tmp_path: Path, name: str) -> None:
    """All at once, so that all of them have met the one that refuses before it rests."""
    async with fleet(tmp_path, REJECTIONS[name], Answer()) as (proxy, engines):
        body = chat(stream=name in EVENTS)
        answers = await asyncio.gather(*(proxy.post(body=body) for _ in range(40)))
        assert {(answer.status, answer.whole) for answer in answers} == {(200, True)}
        assert not any(CANARY.encode() in answer.body for answer in answers)
        assert hits(engines)[1] == 40
        assert 0 < hits(engines)[0] <= 40
        assert 25 < proxy.backend(1).cooling_until - time.monotonic() <= 30
        # It rests: nobody asks it for a while.
        asked = hits(engines)[0]
        assert (await proxy.post(body=body)).status == 200
        assert hits(engines) == [asked, 41]
        event = await proxy.events.get(41)
        assert (event.status, event.attempts, event.backend_id) == (200, 1, "backend-2")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
@pytest.mark.parametrize("name", REJECTIONS)
async def test_from_all_not_one_word_reaches_the_client(tmp_path: Path, name: str, path: str) -> None:
    async with fleet(tmp_path, REJECTIONS[name], REJECTIONS[name]) as (proxy, engines):
        for engine in engines:
            engine.script("/messages", REJECTIONS[name])
        text = await raw_answer(proxy, path, chat(stream=name in EVENTS))
        head, _, body = text.partition(b"\r\n\r\n")
        for word in (CANARY, CREDENTIAL, "engine-1", "retry-after", "organization"):
            assert word.encode() not in text.lower()
        assert head.startswith(b"HTTP/1.1 502 Bad Gateway\r\n")
        names = sorted(line.partition(b":")[0].lower() for line in head.split(b"\r\n")[1:])
        assert names == [b"connection", b"content-length", b"content-type", b"x-request-id"]
        message = f"every backend of {MODEL} refused the gateway's request"
        error = json.loads(body)["error"]
        if path == "/v1/messages":
            assert error == {"type": "api_error", "message": message}
        else:
            assert error == {
                "message": message,
                "type": "api_error",
                "param": None,
                "code": "upstream_rejected",
            }
        assert [len(engine.requests) for engine in engines] == [1, 1]


@pytest.mark.parametrize("name", REJECTIONS)
async def test_the_log_has_the_words_without_the_secrets_and_it_is_counted(tmp_path: Path, name: str) -> None:
    async with fleet(tmp_path, REJECTIONS[name], REJECTIONS[name]) as (proxy, _):
        assert (await proxy.post(body=chat(stream=name in EVENTS))).code == "upstream_rejected"
        logged = [json.loads(line) for line in proxy.log_text().splitlines()]
        failed = [line for line in logged if line.get("event") == "attempt failed"]
        assert [line["backend"] for line in failed] == ["backend-1", "backend-2"]
        assert all(line["kind"] == "rejected" and CANARY in line["reason"] for line in failed)
        assert not any(secret in proxy.log_text() for secret in (CREDENTIAL, KEY))
        assert proxy.metrics.rejections == {"upstream_rejected": 1}
        for number in (1, 2):
            expected = "2xx" if name in EVENTS else "4xx"
            assert upstream_counts(proxy.metrics, f"backend-{number}") == {expected: 1}
            assert proxy.backend(number).cooling_until > time.monotonic() + 25
        event = await proxy.events.get()
        assert (event.status, event.attempts, event.refusal, event.usage_reported) == (502, 2, None, False)
        assert (event.prompt_tokens, event.completion_tokens) == (None, None)
        assert proxy.inflight == 0


@pytest.mark.parametrize(
    "body",
    [
        b'{"detail":"Not Found"}',
        _error("File 'my model does not exist.txt' was not found", "invalid_request_error"),
        _error("Tool 'model' not found", "not_found_error", 404),
    ],
)
async def test_a_404_about_anything_else_is_the_clients(tmp_path: Path, body: bytes) -> None:
    async with fleet(tmp_path, Answer(status=404, body=body), Answer()) as (proxy, engines):
        answer = await proxy.post()
        assert (answer.status, answer.body) == (404, body)
        assert hits(engines) == [1, 0]
        assert proxy.backend(1).cooling_until == 0.0


async def test_an_answer_that_is_no_rejection_decides_wherever_it_stood(tmp_path: Path) -> None:
    ill = Answer(status=500, body=b"mine")
    async with fleet(tmp_path, STATUSES["401"], ill, STATUSES["404 of vLLM"]) as (proxy, engines):
        answer = await proxy.post()
        assert (answer.status, answer.body) == (500, b"mine")
        assert hits(engines) == [1, 1, 1]


async def test_rejections_beside_one_that_is_not_there(tmp_path: Path) -> None:
    async with fleet(tmp_path, STATUSES["401"], Answer()) as (proxy, _):
        proxy.backend(2).pool._port = closed_port()
        answer = await proxy.post()
        assert (answer.status, answer.code) == (502, "upstream_unavailable")
        assert CANARY.encode() not in answer.body


async def test_a_stream_that_begins_with_an_overload_cools_and_moves_on(tmp_path: Path) -> None:
    error = b'data: {"error":{"message":"slow down","type":"rate_limit_error","code":429}}\n\n'
    busy = Answer(events=(error,))
    async with fleet(tmp_path, busy, Answer()) as (proxy, engines):
        assert (await proxy.post(body=chat(stream=True))).status == 200
        assert hits(engines) == [1, 1]
        assert 3 < proxy.backend(1).cooling_until - time.monotonic() <= 5
    async with fleet(tmp_path, busy, busy) as (proxy, _):
        answer = await proxy.post(body=chat(stream=True))
        assert (answer.status, answer.body, answer.whole) == (200, error, True)


async def test_two_backends_of_one_target(tmp_path: Path) -> None:
    """As they stand in the configuration of a provider model, and the engine itself checks the key."""
    async with (
        FakeEngine.start(api_key="another") as locked,
        FakeEngine.start(api_key=CREDENTIAL) as open_one,
        gateway(tmp_path, locked, open_one) as proxy,
    ):
        for turn in range(6):
            answer = await proxy.post(body=chat(user=f"user-{turn}"))
            assert (answer.status, answer.json()["model"]) == (200, UPSTREAM_MODEL)
        assert locked.hits(CHAT) <= 1
        assert open_one.hits(CHAT) == 6
