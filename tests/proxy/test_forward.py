"""Attempts and failover, against engines that fail in every way, on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path

import pytest

from fastllm_proxy.dispatch import Patience
from tests.fakes.engine import Answer, FakeEngine, Fault
from tests.proxy.fleet import CHAT, DEAD, ILL, fleet, hits
from tests.proxy.rig import MODEL, chat, gateway


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


async def test_an_engine_that_is_not_there(tmp_path: Path) -> None:
    async with fleet(tmp_path, Answer(), Answer()) as (proxy, engines):
        proxy.backend(1).pool._port = _closed_port()
        assert (await proxy.post()).status == 200
        assert hits(engines) == [0, 1]


def _closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


async def test_the_last_answer_decides(tmp_path: Path) -> None:
    busy = Answer(status=429, body=b'{"error":{"message":"slow"}}', headers=(("retry-after", "7"),))
    async with fleet(tmp_path, ILL, busy, DEAD, Answer(status=401)) as (proxy, engines):
        answer = await proxy.post()
        assert (answer.status, answer.body) == (429, b'{"error":{"message":"slow"}}')
        assert answer.headers["retry-after"] == "7"
        assert hits(engines) == [1, 1, 1, 1]
        event = await proxy.events.get()
        assert (event.status, event.attempts, event.refusal) == (429, 4, None)


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


async def test_a_frontend_model_may_ask_for_one_retry_after_a_timeout(tmp_path: Path) -> None:
    patience = Patience(whole=0.1)
    silent = Answer(fault=Fault("stall"))
    patient = {"retry_on_timeout": True}
    async with fleet(tmp_path, silent, Answer(), frontend=patient, patience=patience) as (proxy, _):
        assert (await proxy.post()).status == 200
    async with fleet(tmp_path, silent, silent, Answer(), frontend=patient, patience=patience) as (
        proxy,
        engines,
    ):
        assert (await proxy.post()).code == "upstream_timeout"
        assert hits(engines) == [1, 1, 0]


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
