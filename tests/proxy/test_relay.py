"""Answers on their way to the client: held, relayed at once, held back, cut."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fastllm_proxy.dispatch import Patience
from fastllm_proxy.relay import RelayTimes
from tests.fakes.engine import Answer, FakeEngine, Fault
from tests.proxy.rig import Client, Gateway, chat, gateway

CHAT = "/chat/completions"
CONTENT = b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n'
ERROR = b'data: {"error":{"message":"out of memory","code":500}}\n\n'
DONE = b"data: [DONE]\n\n"
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'


@contextlib.asynccontextmanager
async def relayed(
    folder: Path, *answers: Answer, patience: Patience | None = None, times: RelayTimes | None = None
) -> AsyncIterator[tuple[Gateway, FakeEngine]]:
    """A gateway over one engine for each answer; the first of them is handed out."""
    async with contextlib.AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(FakeEngine.start()) for _ in answers]
        for engine, answer in zip(engines, answers, strict=True):
            for route in (CHAT, "/messages", "/embeddings"):
                engine.script(route, answer)
        proxy = await stack.enter_async_context(gateway(folder, *engines, patience=patience, times=times))
        yield proxy, engines[0]


def stream(*events: bytes, **changes: object) -> Answer:
    return Answer(events=events, **changes)  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def streaming(proxy: Gateway) -> AsyncIterator[Client]:
    """A client that has asked for a stream."""
    client = await proxy.connect()
    try:
        client.send(body=chat(stream=True))
        yield client
    finally:
        client.close()


async def test_pieces_are_passed_on_as_they_come(tmp_path: Path) -> None:
    events = [CONTENT.replace(b"hi", b"%d" % n) for n in range(5)]
    answer = stream(*events, DONE, gap=0.05)
    async with relayed(tmp_path, answer) as (proxy, _), streaming(proxy) as client:
        await client.head()
        pieces = []
        while piece := await client.piece():
            pieces.append(piece)
        assert pieces == [*events, DONE]


async def test_head_and_first_event_leave_together(tmp_path: Path) -> None:
    answer = stream(CONTENT, DONE, delay_to_body=0.1, gap=0.3)
    async with relayed(tmp_path, answer) as (proxy, _), streaming(proxy) as client:
        text = await client.reader.read(65536)
        assert text.startswith(b"HTTP/1.1 200 OK\r\n")
        assert text.endswith(b"\r\n\r\n%x\r\n%b\r\n" % (len(CONTENT), CONTENT))


@pytest.mark.parametrize(
    "start",
    [
        (ERROR,),
        (b": ping\n\n", ERROR),
        (ERROR[:20], ERROR[20:]),
        (b"event: error\r\ndata: x\r\n\r\n",),
    ],
)
async def test_an_error_as_the_first_event_is_a_failed_attempt(
    tmp_path: Path, start: tuple[bytes, ...]
) -> None:
    async with relayed(tmp_path, stream(*start, DONE), stream(CONTENT, DONE)) as (proxy, ill):
        for number in range(8):
            body = chat(stream=True, messages=[{"role": "user", "content": f"q{number}"}])
            assert (await proxy.post(body=body)).body == CONTENT + DONE
        assert ill.hits(CHAT) > 0


async def test_when_every_stream_begins_with_an_error_the_client_sees_it(tmp_path: Path) -> None:
    async with relayed(tmp_path, stream(ERROR, DONE), stream(ERROR, DONE)) as (proxy, _):
        answer = await proxy.post(body=chat(stream=True))
        assert ERROR in answer.body


async def test_a_comment_does_not_end_the_holding_but_time_does(tmp_path: Path) -> None:
    times = RelayTimes(held=0.1)
    async with (
        relayed(tmp_path, stream(b": ping\n\n", CONTENT, DONE, gap=0.6), times=times) as (
            proxy,
            _,
        ),
        streaming(proxy) as client,
    ):
        started = time.monotonic()
        await client.head()
        assert await client.piece() == b": ping\n\n"
        assert time.monotonic() - started < 0.5
        assert await client.piece() == CONTENT


async def test_the_head_goes_alone_when_nothing_comes_and_a_later_error_passes(tmp_path: Path) -> None:
    times = RelayTimes(held=0.1)
    async with (
        relayed(tmp_path, stream(ERROR, DONE, delay_to_body=0.5), times=times) as (
            proxy,
            engine,
        ),
        streaming(proxy) as client,
    ):
        status, headers = await client.head()
        assert status == 200
        assert (headers["cache-control"], headers["x-accel-buffering"]) == ("no-cache", "no")
        assert (await client.piece()).startswith(ERROR)
        assert engine.hits(CHAT) == 1


async def test_a_first_event_of_any_size(tmp_path: Path) -> None:
    huge = b'data: {"choices":[{"delta":{"content":"' + b"x" * 16_000_000 + b'"}}]}\n\n'
    async with relayed(tmp_path, stream(huge, DONE)) as (proxy, _):
        answer = await proxy.post(body=chat(stream=True))
        assert answer.whole
        assert answer.body == huge + DONE


async def test_a_silent_stream_ends_as_a_dying_one_once_its_head_is_out(tmp_path: Path) -> None:
    patience, times = Patience(stream=0.4), RelayTimes(held=0.1)
    async with relayed(tmp_path, stream(CONTENT, delay_to_body=30), patience=patience, times=times) as (
        proxy,
        engine,
    ):
        answer = await proxy.post(body=chat(stream=True))
        assert (answer.status, answer.whole) == (200, False)
        assert json.loads(answer.body.removeprefix(b"data: "))["error"]["code"] == "upstream_timeout"
        event = await proxy.events.get()
        assert (event.status, event.attempts) == (502, 1)
        async with asyncio.timeout(1):
            await engine.connections[0].closed.wait()


async def test_a_stream_that_falls_silent_later(tmp_path: Path) -> None:
    patience, times = Patience(stream=0.2), RelayTimes(idle=0.2)
    async with relayed(tmp_path, stream(CONTENT, DONE, gap=30), patience=patience, times=times) as (proxy, _):
        answer = await proxy.post(body=chat(stream=True))
        assert not answer.whole
        assert answer.body.startswith(CONTENT)
        assert b'"upstream_timeout"' in answer.body


@pytest.mark.parametrize("kind", ["reset", "close"])
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("asks", [False, True])
async def test_a_backend_that_dies_mid_stream_is_visible(
    tmp_path: Path, kind: str, split: bool, asks: bool
) -> None:
    fault = Fault(kind, at="mid_body", after=3, split=split)  # type: ignore[arg-type]
    async with relayed(tmp_path, stream(CONTENT, CONTENT, CONTENT, DONE, fault=fault, gap=0.02)) as (
        proxy,
        _,
    ):
        members: dict[str, Any] = {"stream_options": {"include_usage": True}} if asks else {}
        answer = await proxy.post(body=chat(stream=True, **members))
        assert answer.status == 200
        assert not answer.whole
        assert DONE not in answer.body
        *events, last, rest = answer.body.split(b"\n\n")
        assert rest == b""
        assert events[:2] == [CONTENT.strip()] * 2
        assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "upstream_disconnected"
        event = await proxy.events.get()
        assert (event.status, event.usage_reported, event.prompt_tokens) == (502, False, None)
        assert proxy.inflight == 0


async def test_an_anthropic_stream_dies_in_its_own_words(tmp_path: Path) -> None:
    answer = Answer(fault=Fault("reset", at="mid_body", after=3), gap=0.02)
    async with relayed(tmp_path, answer) as (proxy, _):
        got = await proxy.post("/v1/messages", chat(stream=True, max_tokens=5))
        assert not got.whole
        assert got.body.split(b"\n\n")[-2].startswith(b'event: error\ndata: {"type":"error"')
        assert b"message_stop" not in got.body


async def test_a_body_that_is_not_a_stream_is_cut(tmp_path: Path) -> None:
    body = b'{"data":"' + b"x" * 300_000 + b'"}'
    fault = Fault("reset", at="end")
    async with relayed(tmp_path, Answer(body=body, fault=fault, bytes_per_send=100_000, gap=0.05)) as (
        proxy,
        _,
    ):
        answer = await proxy.post("/v1/embeddings")
        assert (answer.status, answer.whole) == (200, False)
        assert body.startswith(answer.body)
        assert (await proxy.events.get()).status == 502


@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, 3_000_000])
@pytest.mark.parametrize("framing", ["length", "chunked", "eof"])
async def test_bodies_of_any_size_and_framing(tmp_path: Path, size: int, framing: str) -> None:
    body = b"%b" % (b"y" * size)
    answer = Answer(body=body, framing=framing, headers=(("x-own", "1"),))  # type: ignore[arg-type]
    async with relayed(tmp_path, answer) as (proxy, _):
        got = await proxy.post("/v1/embeddings")
        assert (got.status, got.body, got.whole, got.headers["x-own"]) == (200, body, True, "1")
        assert ("content-length" in got.headers) is (framing == "length")


@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize("bytes_per_send", [None, 1, 7])
async def test_the_usage_event_is_for_those_who_ask(
    tmp_path: Path, asks: bool, bytes_per_send: int | None
) -> None:
    answer = stream(CONTENT, USAGE, DONE, bytes_per_send=bytes_per_send)
    async with relayed(tmp_path, answer) as (proxy, _):
        members: dict[str, Any] = {"stream_options": {"include_usage": True}} if asks else {}
        got = await proxy.post(body=chat(stream=True, **members))
        assert got.body == CONTENT + (USAGE if asks else b"") + DONE
        event = await proxy.events.get()
        assert (event.prompt_tokens, event.completion_tokens) == (3, 2)


async def test_a_compressed_answer_passes_unchanged(tmp_path: Path) -> None:
    async with relayed(tmp_path, Answer(gzip=True)) as (proxy, engine):
        got = await proxy.post()
        assert got.headers["content-encoding"] == "gzip"
        assert int(got.headers["content-length"]) == len(got.body)
        assert engine.requests[0].header("accept-encoding") == "identity"
        assert (await proxy.events.get()).prompt_tokens == 7


async def test_a_compressed_stream_passes_at_once_and_unchanged(tmp_path: Path) -> None:
    pieces = [gzip.compress(CONTENT), gzip.compress(DONE)]
    answer = stream(*pieces, headers=(("content-encoding", "gzip"),), gap=0.5)
    async with relayed(tmp_path, answer) as (proxy, _), streaming(proxy) as client:
        started = time.monotonic()
        _, headers = await client.head()
        assert headers["content-encoding"] == "gzip"
        assert await client.piece() == pieces[0]
        assert time.monotonic() - started < 0.4
        assert await client.piece() == pieces[1]


async def test_a_body_is_let_go_while_its_answer_streams(tmp_path: Path) -> None:
    async with relayed(tmp_path, stream(CONTENT, DONE, gap=0.3)) as (proxy, _):
        client = await proxy.connect()
        client.send(body=chat(stream=True, x="y" * 1_000_000))
        await client.head()
        assert proxy.server._budget.held == 0
        client.close()
        event = await proxy.events.get()
        assert (event.stream, event.model) == (True, "assistant")


async def test_a_slow_client_holds_back_its_own_engine(tmp_path: Path) -> None:
    """What an engine may write while nobody reads: what the sockets on the way hold, and 64 KiB in
    between."""
    piece = b"data: " + b"z" * 65_528 + b"\n\n"
    async with relayed(tmp_path, stream(*[piece] * 600)) as (proxy, engine), streaming(proxy) as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        connection = (await engine.arrived(1)).connection
        sent = -1
        async with asyncio.timeout(10):
            while connection.sent != sent:
                sent = connection.sent
                await asyncio.sleep(0.3)
        assert sent < 20_000_000
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        got = await client.answer()
        assert got.whole
        assert got.body == piece * 600


@pytest.mark.parametrize(
    "answer",
    [
        Answer(delay_to_head=30),
        stream(CONTENT, delay_to_body=30),
        stream(CONTENT, DONE, gap=30),
        Answer(body=b"x" * 5000, bytes_per_send=1000, gap=30),
    ],
    ids=["before the head", "before the first event", "streaming", "reading whole"],
)
@pytest.mark.parametrize("half", [False, True])
async def test_when_the_client_goes_the_engine_is_let_go(tmp_path: Path, answer: Answer, half: bool) -> None:
    async with relayed(tmp_path, answer) as (proxy, engine), streaming(proxy) as client:
        request = await engine.arrived(1)
        await asyncio.sleep(0.1)
        if half:
            client.writer.write_eof()
        else:
            client.writer.transport.abort()
        async with asyncio.timeout(1):
            await request.connection.closed.wait()
        event = await proxy.events.get()
        assert (event.status, event.attempts) == (499, 1)
        assert (event.prompt_tokens, event.completion_tokens, event.usage_reported) == (None, None, False)
        assert proxy.inflight == 0


async def test_a_client_that_goes_while_the_writer_is_blocked(tmp_path: Path) -> None:
    piece = b"data: " + b"z" * 65_528 + b"\n\n"
    async with relayed(tmp_path, stream(*[piece] * 600)) as (proxy, engine), streaming(proxy) as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        request = await engine.arrived(1)
        await asyncio.sleep(0.5)
        client.writer.transport.abort()
        async with asyncio.timeout(1):
            await request.connection.closed.wait()
        assert (await proxy.events.get()).status == 499
        assert proxy.inflight == 0


async def test_a_client_that_goes_while_its_backend_is_being_connected_to(tmp_path: Path) -> None:
    async with FakeEngine.start() as engine:
        engine.accepting = "stall"  # accepts, but never answers the TLS handshake
        secure = {"api_base": engine.url.replace("http:", "https:")}
        async with gateway(tmp_path, engine, providers=secure) as proxy, streaming(proxy) as client:
            async with asyncio.timeout(5):
                while not engine.connections:  # noqa: ASYNC110 - the engine tells nobody of a bare connection
                    await asyncio.sleep(0.01)
            client.writer.transport.abort()
            async with asyncio.timeout(1):
                await engine.connections[0].closed.wait()
            event = await proxy.events.get()
            assert (event.status, event.attempts, event.usage_reported) == (499, 1, False)
            assert proxy.inflight == 0
