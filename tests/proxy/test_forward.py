"""Attempts and failover, against engines that fail in every way, on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fastllm_proxy.forward import ForwardSettings
from fastllm_proxy.view import FrontendModel
from fastllm_shared.snapshot import FrontendModelEntry, TargetEntry
from tests.fakes.engine import Answer, FakeEngine, Fault
from tests.proxy.parts import target
from tests.proxy.rig import CREDENTIAL, MODEL, Gateway, chat, gateway

CHAT = "/chat/completions"
ILL = Answer(status=500)
DEAD = Answer(fault=Fault("reset"))


@contextlib.asynccontextmanager
async def fleet(
    folder: Path, *answers: Answer, frontend: dict[str, Any] | None = None, **changes: Any
) -> AsyncIterator[tuple[Gateway, list[FakeEngine]]]:
    """A gateway over as many engines as there are answers. They are tried in this order, for they stand in
    targets of their own, the first with all the weight."""
    async with contextlib.AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(FakeEngine.start()) for _ in answers]
        for engine, answer in zip(engines, answers, strict=True):
            engine.script(CHAT, answer)
        proxy = await stack.enter_async_context(gateway(folder, *engines, **changes))
        apart(proxy, **(frontend or {}))
        yield proxy, engines


def apart(proxy: Gateway, **frontend: Any) -> None:
    """Puts each backend into a target of its own, in order."""
    view = proxy.store.current
    assert view is not None
    entry = FrontendModelEntry("frontend-1", MODEL, 0.0, targets=(TargetEntry("qwen"),), **frontend)
    targets = tuple(
        target(f"t{n}", backend, weight=0 if n else 1) for n, backend in enumerate(view.backends.values())
    )
    models = {**view.models, MODEL: FrontendModel(entry, MODEL, None, targets, None)}
    proxy.store.current = msgspec.structs.replace(view, models=models)


def hits(engines: list[FakeEngine]) -> list[int]:
    return [engine.hits(CHAT) for engine in engines]


@pytest.mark.parametrize(
    "bad",
    [
        ILL,
        Answer(status=503),
        Answer(status=429),
        Answer(status=529),
        Answer(status=401),
        Answer(status=402),
        Answer(status=403),
        Answer(status=404, body=b'{"error":{"message":"The model `x` does not exist."}}'),
        Answer(status=302, headers=(("location", "http://127.0.0.1:1/"),)),
        DEAD,
        Answer(fault=Fault("close")),
        Answer(fault=Fault("close", at="mid_head")),
        Answer(fault=Fault("close", at="body")),
        Answer(raw=b"nonsense\r\n\r\n"),
        Answer(status=500, body=b"x" * (1024 * 1024 + 1)),
    ],
    ids=lambda answer: (
        f"{answer.status}-{answer.fault and answer.fault.at}-{(answer.raw or b'')[:3].decode()}"
    ),
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_failed_attempt_moves_on_before_the_first_byte(
    tmp_path: Path, bad: Answer, stream: bool
) -> None:
    async with fleet(tmp_path, bad, Answer()) as (proxy, engines):
        answer = await proxy.post(body=chat(stream=stream))
        assert answer.status == 200
        assert answer.whole
        assert hits(engines) == [1, 1]
        event = await proxy.events.get()
        assert (event.status, event.attempts, event.provider) == (200, 2, "engine-2")
        assert proxy.inflight == 0
        assert proxy.metrics.failovers == {MODEL: 1}
        assert "attempt failed" in proxy.log_text()


async def test_an_answer_that_is_short_of_its_end_was_not_sent_yet(tmp_path: Path) -> None:
    async with fleet(tmp_path, Answer(fault=Fault("close", at="end")), Answer()) as (proxy, engines):
        answer = await proxy.post()
        assert (answer.status, answer.whole) == (200, True)
        assert hits(engines) == [1, 1]


async def test_an_engine_that_is_not_there(tmp_path: Path) -> None:
    async with fleet(tmp_path, Answer(), Answer()) as (proxy, engines):
        proxy.backend(1).pool._port = _closed_port()
        assert (await proxy.post()).status == 200
        assert hits(engines) == [0, 1]


def _closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.mark.parametrize("status", [400, 404, 409, 413, 422])
async def test_a_clients_own_error_passes_as_it_is(tmp_path: Path, status: int) -> None:
    body = b'{"detail":"no"}'
    bad = Answer(status=status, body=body, headers=(("x-own", "1"),))
    async with fleet(tmp_path, bad, Answer()) as (proxy, engines):
        answer = await proxy.post()
        assert (answer.status, answer.body, answer.headers["x-own"]) == (status, body, "1")
        assert hits(engines) == [1, 0]
        assert (await proxy.events.get()).status == status
        assert proxy.backend(1).cooling_until == 0.0


async def test_the_last_answer_decides(tmp_path: Path) -> None:
    busy = Answer(status=429, body=b'{"error":{"message":"slow"}}', headers=(("retry-after", "7"),))
    async with fleet(tmp_path, ILL, busy, DEAD, Answer(status=401)) as (proxy, engines):
        answer = await proxy.post()
        assert (answer.status, answer.body) == (429, b'{"error":{"message":"slow"}}')
        assert answer.headers["retry-after"] == "7"
        assert hits(engines) == [1, 1, 1, 1]
        event = await proxy.events.get()
        assert (event.status, event.attempts, event.refusal) == (429, 4, None)


async def test_only_rejections(tmp_path: Path) -> None:
    text = f'{{"error":{{"message":"Incorrect API key {CREDENTIAL} provided"}}}}'.encode()
    async with fleet(tmp_path, Answer(status=401, body=text), Answer(status=403)) as (proxy, _):
        answer = await proxy.post()
        assert (answer.status, answer.code) == (502, "upstream_rejected")
        assert b"Incorrect" not in answer.body
        logged = proxy.log_text()
        assert "Incorrect API key *** provided" in logged
        assert CREDENTIAL not in logged
        assert proxy.backend(1).cooling_until > time.monotonic() + 20


async def test_an_extra_header_that_a_provider_repeats_is_not_logged(tmp_path: Path) -> None:
    async with fleet(tmp_path, Answer(status=403, body=b"tenant key canary-4711 is unknown")) as (proxy, _):
        backend = proxy.backend(1)
        headers = (("x-tenant-key", "canary-4711"),)
        backend.provider = msgspec.structs.replace(backend.provider, extra_headers=headers)
        assert (await proxy.post()).code == "upstream_rejected"
        logged = proxy.log_text()
        assert "tenant key *** is unknown" in logged
        assert "canary" not in logged


async def test_only_unreachable_ones(tmp_path: Path) -> None:
    async with fleet(tmp_path, Answer(), Answer()) as (proxy, engines):
        for number in (1, 2):
            proxy.backend(number).pool._port = _closed_port()
        answer = await proxy.post()
        assert (answer.status, answer.code) == (502, "upstream_unavailable")
        assert answer.json()["error"]["message"] == f"no healthy backend for {MODEL}"
        assert hits(engines) == [0, 0]
        event = await proxy.events.get()
        assert (event.status, event.attempts, event.prompt_tokens) == (502, 2, None)


async def test_what_was_reset_after_it_was_sent_goes_to_one_more_at_most(tmp_path: Path) -> None:
    async with fleet(tmp_path, DEAD, DEAD, Answer()) as (proxy, engines):
        assert (await proxy.post()).code == "upstream_unavailable"
        assert hits(engines) == [1, 1, 0]


async def test_never_more_than_four_attempts(tmp_path: Path) -> None:
    async with fleet(tmp_path, *[ILL] * 6) as (proxy, engines):
        assert (await proxy.post()).status == 500
        assert hits(engines) == [1, 1, 1, 1, 0, 0]


async def test_at_most_two_further_backends_of_one_target(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(FakeEngine.start()) for _ in range(5)]
        for engine in engines:
            engine.script(CHAT, ILL)
        proxy = await stack.enter_async_context(gateway(tmp_path, *engines))
        assert (await proxy.post()).status == 500
        assert sorted(hits(engines)) == [0, 0, 1, 1, 1]
        assert proxy.inflight == 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("silent", [Answer(delay_to_head=30), Answer(fault=Fault("stall"))])
async def test_no_first_byte_in_time_is_not_sent_elsewhere(
    tmp_path: Path, stream: bool, silent: Answer
) -> None:
    settings = ForwardSettings(upstream_timeout=0.1, response_timeout=0.1)
    async with fleet(tmp_path, silent, Answer(), settings=settings) as (proxy, engines):
        answer = await proxy.post(body=chat(stream=stream))
        assert (answer.status, answer.code) == (504, "upstream_timeout")
        assert answer.headers["x-should-retry"] == "false"
        assert hits(engines) == [1, 0]
        async with asyncio.timeout(1):
            await engines[0].connections[0].closed.wait()
        assert (await proxy.events.get()).status == 504


async def test_a_frontend_model_may_ask_for_one_retry_after_a_timeout(tmp_path: Path) -> None:
    settings = ForwardSettings(response_timeout=0.1)
    silent = Answer(fault=Fault("stall"))
    patient = {"retry_on_timeout": True}
    async with fleet(tmp_path, silent, Answer(), frontend=patient, settings=settings) as (proxy, _):
        assert (await proxy.post()).status == 200
    async with fleet(tmp_path, silent, silent, Answer(), frontend=patient, settings=settings) as (
        proxy,
        engines,
    ):
        assert (await proxy.post()).code == "upstream_timeout"
        assert hits(engines) == [1, 1, 0]


async def test_a_backends_own_patience_counts(tmp_path: Path) -> None:
    changes = {"upstream_timeout_seconds": 0.1, "response_timeout_seconds": 20.0}
    slow = Answer(delay_to_head=0.4)
    async with fleet(tmp_path, slow, backends=changes) as (proxy, _):
        assert (await proxy.post(body=chat(stream=True))).status == 504
        assert (await proxy.post()).status == 200


async def test_a_connection_that_was_closed_while_idle_costs_no_attempt(tmp_path: Path) -> None:
    async with fleet(tmp_path, Answer(), Answer()) as (proxy, engines):
        assert (await proxy.post()).status == 200
        # The engine closes upon the next request, as if its time for idle connections had just run out.
        engines[0].script(CHAT, DEAD, Answer())
        assert (await proxy.post()).status == 200
        assert hits(engines) == [3, 0]
        assert (await proxy.events.get(2)).attempts == 1
        assert proxy.metrics.failovers == {}
        # On a fresh connection the same is a failure.
        engines[0].script(CHAT, DEAD)
        assert (await proxy.post()).status == 200
        assert (await proxy.events.get(3)).attempts == 2


async def test_a_backend_that_dies_of_a_request_on_a_kept_connection_has_had_its_attempt(
    tmp_path: Path,
) -> None:
    dies_late = Answer(raw=b"", delay_to_head=0.1, fault=Fault("reset", at="idle"))
    async with fleet(tmp_path, Answer(), Answer(), settings=ForwardSettings(stale=0.02)) as (proxy, engines):
        assert (await proxy.post()).status == 200
        engines[0].script(CHAT, dies_late)
        assert (await proxy.post()).status == 200
        assert hits(engines) == [2, 1]
        assert (await proxy.events.get(2)).attempts == 2


async def test_a_busy_backend_cools_and_is_tried_when_all_are(tmp_path: Path) -> None:
    busy = Answer(status=503, headers=(("retry-after", "40"),))
    async with fleet(tmp_path, busy, Answer()) as (proxy, engines):
        assert (await proxy.post()).status == 200
        assert 30 < proxy.backend(1).cooling_until - time.monotonic() <= 40
        assert (await proxy.post()).status == 200
        assert hits(engines) == [1, 2]
        proxy.backend(2).cooling_until = time.monotonic() + 5
        engines[1].script(CHAT, Answer(status=429, body=b"mine"))
        answer = await proxy.post()
        assert hits(engines) == [2, 3]
        assert (answer.status, answer.body) == (429, b"mine")


async def test_ill_health_does_not_cool(tmp_path: Path) -> None:
    async with fleet(tmp_path, ILL, Answer()) as (proxy, engines):
        await proxy.post()
        await proxy.post()
        assert hits(engines) == [2, 2]


async def test_retries_are_rationed(tmp_path: Path) -> None:
    """Of 12 requests that fail at once, 3 may be tried elsewhere at a time: the others are told at once."""
    async with fleet(tmp_path, ILL, Answer(delay_to_head=0.5)) as (proxy, engines):
        answers = await asyncio.gather(*(proxy.post() for _ in range(12)))
        assert sorted(answer.status for answer in answers) == [200] * 3 + [500] * 9
        assert hits(engines) == [12, 3]
        assert (await proxy.post()).status == 200


async def test_nothing_to_try(tmp_path: Path) -> None:
    async with (
        FakeEngine.start() as engine,
        gateway(tmp_path, engine, backends={"state": "draining"}) as proxy,
    ):
        answer = await proxy.post()
        assert (answer.status, answer.code) == (503, "no_backend")
        event = await proxy.events.get()
        assert (event.status, event.refusal, event.attempts) == (503, "no_backend", 0)
        assert engine.requests == []


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


async def test_connections_are_used_again(tmp_path: Path) -> None:
    async with fleet(tmp_path, Answer()) as (proxy, engines):
        for number in range(6):
            await proxy.post(body=chat(stream=bool(number % 2)))
        assert len(engines[0].connections) == 1
        assert proxy.backend(1).latency is not None
