"""The timeouts, each with its error, its closed upstream and its usage row; how often a request is sent."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fastllm_proxy.dispatch import Patience
from fastllm_proxy.relay import RelayTimes
from fastllm_proxy.upstream import Endpoint
from fastllm_shared.usage import UsageEvent
from tests.fakes.engine import Answer, FakeEngine, Fault
from tests.proxy.fleet import CHAT, DEAD, ILL, apart, closed_port, fleet, hits
from tests.proxy.rig import MODEL, Answered, Gateway, chat, gateway

MESSAGES = "/messages"
SHORT = Patience(stream=0.15, whole=0.15)
ONCE_MORE = {"retry_on_timeout": True}
SILENT = Answer(fault=Fault("stall"))
HEAD_ALONE = Answer(events=(b"data: {}\n\n",), fault=Fault("stall", at="body"))
WORD = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
TWO_WORDS = Answer(events=(WORD, WORD, WORD), fault=Fault("stall", at="mid_body", after=2))


def nothing_is_known_of_tokens(event: UsageEvent) -> bool:
    counts = (event.prompt_tokens, event.completion_tokens, event.cached_tokens, event.cost_micros)
    return counts == (None,) * 4 and not event.usage_reported


async def closes_within_a_second(engine: FakeEngine) -> None:
    async with asyncio.timeout(1):
        for connection in engine.connections:
            await connection.closed.wait()


async def post(proxy: Gateway, dialect: str, **members: Any) -> Answered:
    return await proxy.post("/v1" + (MESSAGES if dialect == "anthropic" else CHAT), chat(**members))


def script(engines: Sequence[FakeEngine], *answers: Answer) -> None:
    """What they answer in the other dialect."""
    for engine, answer in zip(engines, answers, strict=False):
        engine.script(MESSAGES, answer)


# No first byte, or no head, in time


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
@pytest.mark.parametrize(
    ("answer", "stream"),
    [(SILENT, True), (HEAD_ALONE, True), (SILENT, False)],
    ids=["stream without head", "stream without a byte of its body", "answer without head"],
)
async def test_no_first_byte_in_time_is_a_504_and_is_sent_once(
    tmp_path: Path, answer: Answer, stream: bool, dialect: str
) -> None:
    async with fleet(tmp_path, answer, Answer(), patience=SHORT) as (proxy, engines):
        script(engines, answer)
        got = await post(proxy, dialect, stream=stream)
        await closes_within_a_second(engines[0])
        assert (got.status, got.headers["x-should-retry"], got.whole) == (504, "false", True)
        message = f"the backend of {MODEL} did not answer in time"
        if dialect == "anthropic":
            assert got.json()["type"] == "error"
            assert got.json()["error"] == {"type": "timeout_error", "message": message}
        else:
            assert got.json() == {
                "error": {
                    "message": message,
                    "type": "timeout_error",
                    "param": None,
                    "code": "upstream_timeout",
                }
            }
        assert [len(engine.requests) for engine in engines] == [1, 0]
        event = await proxy.events.get()
        assert (event.status, event.attempts, event.stream, event.refusal) == (504, 1, stream, None)
        assert (event.backend_id, event.provider, event.ttft_ms) == ("backend-1", "engine-1", None)
        assert nothing_is_known_of_tokens(event)
        assert proxy.inflight == 0


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
async def test_a_stream_let_go_before_its_first_byte_ends_with_an_error_event(
    tmp_path: Path, dialect: str
) -> None:
    times = RelayTimes(held=0.05)
    patience = Patience(stream=0.4)
    async with fleet(tmp_path, HEAD_ALONE, Answer(), patience=patience, times=times) as (proxy, engines):
        script(engines, HEAD_ALONE)
        got = await post(proxy, dialect, stream=True)
        await closes_within_a_second(engines[0])
        assert (got.status, got.whole) == (200, False)
        assert b"[DONE]" not in got.body
        assert_error_event(got.body, dialect)
        assert [len(engine.requests) for engine in engines] == [1, 0]
        event = await proxy.events.get()
        assert (event.status, event.attempts, event.backend_id) == (502, 1, "backend-1")
        assert nothing_is_known_of_tokens(event)
        assert '"code":"upstream_timeout"' in proxy.log_text()


def assert_error_event(text: bytes, dialect: str) -> None:
    """It is one error event and nothing else."""
    *lines, data, empty, end = text.split(b"\n")
    assert (empty, end) == (b"", b"")
    error = json.loads(data.removeprefix(b"data: "))["error"]
    if dialect == "anthropic":
        assert lines == [b"event: error"]
        assert error == {"type": "api_error", "message": "the backend stopped sending"}
    else:
        assert lines == []
        assert error["code"] == "upstream_timeout"
        assert sorted(error) == ["code", "message", "param", "type"]


async def test_a_silence_within_a_stream_cuts_it(tmp_path: Path) -> None:
    async with fleet(tmp_path, TWO_WORDS, Answer(), times=RelayTimes(idle=0.2)) as (proxy, engines):
        got = await proxy.post(body=chat(stream=True))
        await closes_within_a_second(engines[0])
        assert (got.status, got.whole) == (200, False)
        assert got.body.startswith(WORD + WORD)
        assert_error_event(got.body.removeprefix(WORD + WORD), "openai")
        assert hits(engines) == [1, 0]
        event = await proxy.events.get()
        assert (event.status, event.attempts) == (502, 1)
        assert nothing_is_known_of_tokens(event)
        assert event.ttft_ms is not None


@pytest.mark.parametrize(
    ("path", "begun"),
    [
        (
            MESSAGES,
            b'event: message_start\ndata: {"type":"message_start","message":{"id":"m","usage":'
            b'{"input_tokens":9,"output_tokens":0}}}\n\n',
        ),
        (CHAT, b'data: {"choices":[{}],"usage":{"prompt_tokens":9,"completion_tokens":0}}\n\n'),
    ],
)
async def test_what_a_cut_stream_has_generated_is_never_zero(tmp_path: Path, path: str, begun: bytes) -> None:
    """Engines that count as they go begin with 0."""
    cut = Answer(events=(begun, WORD), fault=Fault("stall", at="mid_body", after=1))
    async with fleet(tmp_path, cut, times=RelayTimes(idle=0.2)) as (proxy, engines):
        engines[0].script(path, cut)
        got = await proxy.post("/v1" + path, chat(stream=True))
        assert (got.status, got.whole) == (200, False)
        event = await proxy.events.get()
        assert (event.status, event.prompt_tokens) == (502, 9)
        assert (event.completion_tokens, event.cost_micros) == (None, None)


async def test_an_error_that_counts_tokens_is_no_usage(tmp_path: Path) -> None:
    error = (
        b'data: {"error":{"message":"no","code":401},"usage":{"prompt_tokens":0,"completion_tokens":0}}\n\n'
    )
    async with fleet(tmp_path, Answer(events=(error,))) as (proxy, _):
        assert (await proxy.post(body=chat(stream=True))).code == "upstream_rejected"
        assert nothing_is_known_of_tokens(await proxy.events.get())


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_a_silence_within_a_large_answer_cuts_it_so_that_nobody_takes_it_for_whole(
    tmp_path: Path, framing: Any
) -> None:
    large = Answer(
        body=b"x" * 300_000, framing=framing, fault=Fault("stall", at="mid_body", after=1, split=True)
    )
    async with fleet(tmp_path, large, Answer(), times=RelayTimes(idle=0.2)) as (proxy, engines):
        got = await proxy.post()
        await closes_within_a_second(engines[0])
        assert (got.status, got.whole) == (200, False)
        assert 0 < len(got.body) < 300_000
        assert set(got.body) == {ord("x")}
        event = await proxy.events.get()
        assert (event.status, event.attempts) == (502, 1)
        assert nothing_is_known_of_tokens(event)
        assert hits(engines) == [1, 0]


async def test_a_silence_within_a_small_answer_is_a_504_since_nothing_was_sent(tmp_path: Path) -> None:
    half = Answer(fault=Fault("stall", at="mid_body", split=True))
    async with fleet(tmp_path, half, Answer(), times=RelayTimes(idle=0.2)) as (proxy, engines):
        got = await proxy.post()
        await closes_within_a_second(engines[0])
        assert (got.status, got.code, got.headers["x-should-retry"]) == (504, "upstream_timeout", "false")
        assert nothing_is_known_of_tokens(await proxy.events.get())
        assert hits(engines) == [1, 0]


@pytest.mark.parametrize("size", [100, 300_000])
async def test_the_time_to_the_headers_is_over_once_they_are_there(tmp_path: Path, size: int) -> None:
    late = Answer(body=b"x" * size, delay_to_body=0.4)
    async with fleet(tmp_path, late, patience=SHORT) as (proxy, _):
        got = await proxy.post()
        assert (got.status, got.body) == (200, b"x" * size)


async def test_a_stream_that_is_answered_whole_has_the_streams_time(tmp_path: Path) -> None:
    late = Answer(body=b"{}", delay_to_body=5)
    async with fleet(tmp_path, late, patience=Patience(stream=0.15)) as (proxy, engines):
        assert (await proxy.post(body=chat(stream=True))).status == 504
        await closes_within_a_second(engines[0])


async def test_each_backend_may_have_its_own_times(tmp_path: Path) -> None:
    late = Answer(delay_to_head=0.4)
    async with fleet(tmp_path, late, backends={"upstream_timeout_seconds": 0.1}) as (proxy, _):
        assert (await proxy.post(body=chat(stream=True))).status == 504
        assert (await proxy.post()).status == 200
    own = {"response_timeout_seconds": 5.0}
    async with fleet(tmp_path, late, backends=own, patience=SHORT) as (proxy, _):
        assert (await proxy.post()).status == 200
        assert (await proxy.post(body=chat(stream=True))).status == 504


async def test_connecting_has_one_time_for_all_addresses_and_moves_on(tmp_path: Path) -> None:
    async def never(host: str, port: int) -> Sequence[Endpoint]:
        await asyncio.Event().wait()
        return []

    async with fleet(tmp_path, Answer(), Answer()) as (proxy, engines):
        for number in (1, 2):
            proxy.backend(number).pool._connect_seconds = 0.1
        proxy.backend(1).pool._resolve = never
        assert (await proxy.post()).status == 200
        assert hits(engines) == [0, 1]
        proxy.backend(2).pool._resolve = never
        proxy.backend(2).pool.take().abort()
        got = await proxy.post()
        assert (got.status, got.code) == (502, "upstream_unavailable")
        assert got.json()["error"]["message"] == f"no healthy backend for {MODEL}"
        assert "no connect within 0.1 s" in proxy.log_text()


# How often


@pytest.mark.parametrize("stream", [False, True])
async def test_a_model_that_retries_on_timeout_is_sent_twice_at_most(tmp_path: Path, stream: bool) -> None:
    late = HEAD_ALONE if stream else SILENT
    async with fleet(tmp_path, late, late, Answer(), frontend=ONCE_MORE, patience=SHORT) as (proxy, engines):
        got = await proxy.post(body=chat(stream=stream))
        assert (got.status, got.code, got.headers["x-should-retry"]) == (504, "upstream_timeout", "false")
        assert hits(engines) == [1, 1, 0]
        event = await proxy.events.get()
        assert (event.status, event.attempts, event.backend_id) == (504, 2, "backend-2")
        for engine in engines[:2]:
            await closes_within_a_second(engine)


@pytest.mark.parametrize("second", [ILL, Answer(status=429), DEAD, Answer(status=401)])
async def test_nor_does_an_error_of_the_second_one_lead_to_a_third(tmp_path: Path, second: Answer) -> None:
    async with fleet(tmp_path, SILENT, second, Answer(), frontend=ONCE_MORE, patience=SHORT) as (
        proxy,
        engines,
    ):
        got = await proxy.post()
        expected = second.status if second in (ILL, Answer(status=429)) else 504
        assert got.status == expected
        assert hits(engines) == [1, 1, 0]


async def test_the_second_ones_answer_is_the_clients(tmp_path: Path) -> None:
    async with fleet(tmp_path, SILENT, Answer(), frontend=ONCE_MORE, patience=SHORT) as (proxy, engines):
        assert (await proxy.post()).status == 200
        assert hits(engines) == [1, 1]
        assert (await proxy.events.get()).usage_reported


@pytest.mark.parametrize("second", [DEAD, ILL, Answer(status=403), Answer(raw=b"nonsense\r\n\r\n")])
async def test_what_was_reset_after_it_was_sent_reaches_one_more_at_most(
    tmp_path: Path, second: Answer
) -> None:
    async with fleet(tmp_path, DEAD, second, Answer()) as (proxy, engines):
        got = await proxy.post()
        assert got.status == (500 if second is ILL else 502)
        assert hits(engines) == [1, 1, 0]


async def test_one_that_is_not_there_is_none_that_it_reached(tmp_path: Path) -> None:
    async with fleet(tmp_path, DEAD, Answer(), Answer(), ILL) as (proxy, engines):
        proxy.backend(2).pool._port = closed_port()
        assert (await proxy.post()).status == 200
        assert hits(engines) == [1, 0, 1, 0]


async def test_a_body_that_had_not_left_may_go_on_and_on(tmp_path: Path) -> None:
    large = chat(padding="x" * 4_100_000)
    async with contextlib.AsyncExitStack() as stack:
        # A kernel takes some 2.5 MB of what is sent to one who reads nothing.
        engines = [await stack.enter_async_context(FakeEngine.start(receive_buffer=4096)) for _ in range(3)]
        for engine in engines:
            engine.script(CHAT, DEAD)
        engines.append(await stack.enter_async_context(FakeEngine.start()))
        proxy = await stack.enter_async_context(gateway(tmp_path, *engines))
        apart(proxy)
        got = await proxy.post(body=large)
        assert (got.status, hits(engines)) == (200, [1, 1, 1, 1])
        assert engines[3].requests[0].body.endswith(large[-1000:])


async def test_a_request_is_never_sent_a_fifth_time(tmp_path: Path) -> None:
    kinds = (ILL, Answer(status=401), Answer(status=429), ILL, Answer(), Answer())
    async with fleet(tmp_path, *kinds) as (proxy, engines):
        assert (await proxy.post()).status == 500
        assert hits(engines) == [1, 1, 1, 1, 0, 0]


@pytest.mark.parametrize("seconds", [0.0, 0.3])
async def test_200_failing_calls_at_once_make_a_fifth_more(tmp_path: Path, seconds: float) -> None:
    ill = Answer(status=500, delay_to_head=seconds)
    async with fleet(tmp_path, ill, ill, ill) as (proxy, engines):
        answers = await asyncio.gather(*(proxy.post() for _ in range(200)))
        assert {answer.status for answer in answers} == {500}
        assert 200 < sum(hits(engines)) <= 240
        assert proxy.metrics.failovers == {MODEL: sum(hits(engines)) - 200}
        assert proxy.inflight == 0


async def test_one_caller_after_the_other_always_fails_over(tmp_path: Path) -> None:
    async with fleet(tmp_path, ILL, Answer()) as (proxy, engines):
        for _ in range(20):
            assert (await proxy.post()).status == 200
        assert hits(engines) == [20, 20]


async def test_a_crashed_host_costs_no_caller_his_answer(tmp_path: Path) -> None:
    async with fleet(tmp_path, Answer(), Answer()) as (proxy, engines):
        proxy.backend(1).pool._port = closed_port()
        answers = await asyncio.gather(*(proxy.post() for _ in range(100)))
        assert {answer.status for answer in answers} == {200}
        assert hits(engines) == [0, 100]
