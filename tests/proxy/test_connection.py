from __future__ import annotations

import asyncio
import itertools
import logging
import socket
from collections.abc import AsyncIterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastllm_proxy.accept import EdgeSettings
from fastllm_proxy.body import RequestBody
from fastllm_proxy.exchange import Exchange
from fastllm_proxy.heads import ConnectionLimits
from tests.fakes.edge import AUTH, JSON, KEY, Client, Edge, eventually, get, post, running_edge

HOST = b"Host: gateway\r\n"
HEADERS = ["host", "authorization"]
"""Of a request made by `post`."""
SMUGGLED = b"POST /v1/embeddings HTTP/1.1\r\nHost: evil\r\nContent-Length: 2\r\n" + AUTH + b"\r\n{}"

NOT_HTTP = {
    "garbage": b"Bearer " + KEY.encode() + b"\r\n\r\n",
    "tls hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),
    "http/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "http/0.9": b"GET /livez\r\n\r\n",
    "http/1.2": b"GET /livez HTTP/1.2\r\nHost: x\r\n\r\n",
    "http/3": b"GET /livez HTTP/3.0\r\nHost: x\r\n\r\n",
    "unknown method": b"FROB /livez HTTP/1.1\r\nHost: x\r\n\r\n",
    "tab for a space": b"GET\t/livez HTTP/1.1\r\nHost: x\r\n\r\n",
    "non-ascii path": b"GET /\xff\xe9 HTTP/1.1\r\nHost: x\r\n\r\n",
    "non-ascii query": b"GET /livez?\xff HTTP/1.1\r\nHost: x\r\n\r\n",
    "space in the path": b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n",
    "no host": b"GET /livez HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /livez HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "bare line feeds": b"GET /livez HTTP/1.1\nHost: x\n\n",
    "a bare line feed": b"GET /livez HTTP/1.1\r\nHost: x\nA: b\r\n\r\n",
    "a bare carriage return": b"GET /livez HTTP/1.1\r\nHost: x\rA: b\r\n\r\n",
    "folded header": b"GET /livez HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n",
    "nul in a value": b"GET /livez HTTP/1.1\r\nHost: x\r\nA: b\x00c\r\n\r\n",
    "nul in a name": b"GET /livez HTTP/1.1\r\nHost: x\r\nA\x00: b\r\n\r\n",
    "space before the colon": b"GET /livez HTTP/1.1\r\nHost: x\r\nA : b\r\n\r\n",
    "no header name": b"GET /livez HTTP/1.1\r\nHost: x\r\n: b\r\n\r\n",
    "two lengths": b"POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc",
    "the same length twice": b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\na",
    "a list of lengths": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3, 3\r\n\r\nabc",
    "a signed length": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +3\r\n\r\nabc",
    "a negative length": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -3\r\n\r\nabc",
    "a hexadecimal length": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0x3\r\n\r\nabc",
    "an overflowing length": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\nabc",
    "length and chunks": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and length": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
    b"Content-Length: 3\r\n\r\n0\r\n\r\n",
    "chunked twice": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks in gzip": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunked spelled oddly": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "identity transfer": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: identity\r\n\r\n",
    "chunks from http/1.0": b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a chunk size that is none": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "a chunk size with a line feed": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"2\nab\r\n0\r\n\r\n",
}

MALFORMED_LATER = frozenset(("a chunk size that is none", "a chunk size with a line feed"))
"""Sent byte by byte, these begin with a request that is answered before anything is wrong."""


@pytest.fixture
async def edge(caplog: pytest.LogCaptureFixture) -> AsyncIterator[Edge]:
    """An edge during which nothing may be logged: neither by it nor by asyncio."""
    async with running_edge() as running:
        yield running
        assert running.captured.entries == []
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("what", NOT_HTTP)
@pytest.mark.parametrize("half_close", [False, True])
async def test_what_is_not_http_gets_one_plain_answer(edge: Edge, what: str, half_close: bool) -> None:
    async with await edge.connect() as client:
        # What follows in the same segment is parsed by nobody.
        await client.send(NOT_HTTP[what] + SMUGGLED)
        if half_close:
            client.half_close()
        answer = await client.answer()
        assert answer.status == 400
        assert answer.error == {
            "message": "the request is not well-formed HTTP/1.1",
            "type": "invalid_request_error",
            "param": None,
            "code": "malformed_request",
        }
        assert answer.headers["connection"] == "close"
        assert len(answer.headers["x-request-id"]) == 32
        assert await client.rest() == b""


@pytest.mark.parametrize("what", [what for what in NOT_HTTP if what not in MALFORMED_LATER])
async def test_it_is_refused_in_single_bytes_as_well(edge: Edge, what: str) -> None:
    async with await edge.connect() as client:
        for byte in NOT_HTTP[what] + b"\r\n\r\n":
            await client.send(bytes([byte]))
            await asyncio.sleep(0)
        assert (await client.answer()).status == 400
        assert not await client.rest()


LARGE_HEADS = {
    "one header of 100 KB": b"GET /livez HTTP/1.1\r\n" + HOST + b"A: " + b"b" * 100_000 + b"\r\n\r\n",
    "a name of 100 KB": b"GET /livez HTTP/1.1\r\n" + HOST + b"b" * 100_000 + b": a\r\n\r\n",
    "a path of 100 KB": b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n",
    "10,000 headers": b"GET /livez HTTP/1.1\r\n" + HOST + b"A: b\r\n" * 10_000 + b"\r\n",
    "many of some length": b"GET /livez HTTP/1.1\r\n" + HOST + (b"A: " + b"b" * 400 + b"\r\n") * 90 + b"\r\n",
    "just over": b"GET /livez HTTP/1.1\r\n" + HOST + (b"A: " + b"b" * 16_380 + b"\r\n") * 2 + b"\r\n",
}


@pytest.mark.parametrize("what", LARGE_HEADS)
@pytest.mark.parametrize("step", [1_000_000, 1_460])
async def test_a_large_head_is_431(edge: Edge, what: str, step: int) -> None:
    head = LARGE_HEADS[what]
    async with await edge.connect() as client:
        for start in range(0, len(head), step):
            await client.send(head[start : start + step])
        answer = await client.answer()
        assert (answer.status, answer.error["code"]) == (431, "headers_too_large")
        assert await client.rest() == b""


async def test_a_head_of_almost_32_kib_passes(edge: Edge) -> None:
    fields = (b"A: " + b"b" * 120 + b"\r\n") * 240
    answer = await edge.ask(b"GET /livez HTTP/1.1\r\n" + HOST + fields + b"\r\n")
    assert answer.status == 200
    answer = await edge.ask(post("/v1/embeddings", b"x" * 200_000, AUTH + fields))
    assert answer.status == 200


async def test_a_head_that_comes_too_slowly_is_dropped() -> None:
    limits = ConnectionLimits(head_seconds=0.15)
    async with running_edge(EdgeSettings(max_inflight=9, connection=limits)) as edge:
        async with await edge.connect() as client:
            await client.send(b"GET /livez HTTP/1.1\r\n")
            sending = asyncio.create_task(_slowloris(client))
            answer = await client.answer()
            sending.cancel()
            assert (answer.status, answer.error["code"]) == (408, "request_timeout")
            assert await client.rest() == b""
        async with (
            await edge.connect() as client
        ):  # the clock starts with the first byte, and stops with the last
            await asyncio.sleep(0.25)
            for _ in range(2):
                await client.send(get("/livez")[:10])
                await asyncio.sleep(0.05)
                await client.send(get("/livez")[10:])
                assert (await client.answer()).status == 200
                await asyncio.sleep(0.25)


async def _slowloris(client: Client) -> None:
    for number in itertools.count():
        await client.send(b"X-%d: a\r\n" % number)
        await asyncio.sleep(0.02)


async def test_an_idle_connection_is_closed_in_time() -> None:
    limits = ConnectionLimits(keepalive_seconds=0.2)
    async with running_edge(EdgeSettings(max_inflight=9, connection=limits)) as edge:
        async with await edge.connect() as silent:
            assert await silent.rest() == b""
        async with await edge.connect() as client:
            for _ in range(3):
                await client.send(get("/livez"))
                assert (await client.answer()).status == 200
                await asyncio.sleep(0.1)
            assert await client.rest() == b""


async def test_pipelined_requests_are_answered_in_order(edge: Edge) -> None:
    async with await edge.connect() as client:
        await client.send(
            b"".join(post(f"/v1/embeddings?{n}", b"x" * n * 37) for n in range(100)) + get("/nowhere")
        )
        for number in range(100):
            answer = await client.answer()
            assert answer.json()["query"] == f"?{number}"  # type: ignore[index]
        assert (await client.answer()).status == 404
        await client.send(get("/livez"))
        assert (await client.answer()).status == 200


async def test_a_malformed_request_behind_others_is_refused_in_its_turn(edge: Edge) -> None:
    release = asyncio.Event()

    async def wait(exchange: Exchange, body: RequestBody) -> None:
        await body.read(100)
        await release.wait()
        exchange.downstream.send_whole(200, JSON, b"{}")

    edge.handler = wait
    async with await edge.connect() as client:
        await client.send(post("/v1/embeddings", b"{}"))
        await eventually(lambda: edge.server.inflight == 1)
        await client.send(get("/livez"))
        await asyncio.sleep(0.02)
        await client.send(NOT_HTTP["garbage"] + SMUGGLED)
        await asyncio.sleep(0.02)
        release.set()
        assert [(await client.answer()).status for _ in range(3)] == [200, 200, 400]
        assert await client.rest() == b""
        assert edge.metrics.rejections == {"malformed_request": 1}


async def test_a_body_that_turns_malformed_is_refused(edge: Edge) -> None:
    async with await edge.connect() as client:
        await client.send(_chunked_head() + b"4\r\nabcd\r\n")
        await eventually(lambda: edge.server.inflight == 1)
        await client.send(b"not a size\r\n" + SMUGGLED)
        answer = await client.answer()
        assert (answer.status, answer.error["code"]) == (400, "malformed_request")
        assert await client.rest() == b""


def _chunked_head(extra: bytes = b"") -> bytes:
    return b"POST /v1/embeddings HTTP/1.1\r\n" + HOST + AUTH + extra + b"Transfer-Encoding: chunked\r\n\r\n"


async def test_chunked_bodies_keep_the_connection(edge: Edge) -> None:
    async with await edge.connect() as client:
        for _ in range(3):
            await client.send(_chunked_head() + b"4;name=value\r\nabcd\r\n")
            await client.send(b"2\r\nef\r\n0\r\n")
            await asyncio.sleep(0.01)
            await client.send(b"\r\n")
            answer = await client.answer()
            assert answer.json()["body"] == "abcdef"  # type: ignore[index]
        await client.send(get("/livez"))
        assert (await client.answer()).status == 200


@pytest.mark.parametrize("apart", [False, True])
async def test_a_trailer_never_becomes_a_header_of_the_next_request(edge: Edge, apart: bool) -> None:
    trailer = b"0\r\nX-Kept: by the parser\r\n" + AUTH + b"\r\n"
    following = post("/v1/embeddings", b"second", b"")
    async with await edge.connect() as client:
        await client.send(_chunked_head() + b"4\r\nabcd\r\n" + trailer + (b"" if apart else following))
        answer = await client.answer()
        assert answer.status == 200
        assert "x-kept" not in dict(answer.json()["headers"])  # type: ignore[index]
        if apart:
            await client.send(following)
        assert (await client.answer()).status == 401  # the key in the trailer is nobody's
        await client.send(post("/v1/embeddings", b"third"))
        assert [n for n, _ in (await client.answer()).json()["headers"]] == HEADERS  # type: ignore[index]


async def test_a_trailer_that_ends_like_a_body_is_forgotten_too(edge: Edge) -> None:
    async with await edge.connect() as client:
        await client.send(_chunked_head() + b"4\r\nabcd\r\n0\r\nX-Trailer: 0\r\n\r\n")
        assert (await client.answer()).status == 200
        await client.send(post("/v1/embeddings", b"second"))
        answer = await client.answer()
        assert [n for n, _ in answer.json()["headers"]] == HEADERS  # type: ignore[index]


@pytest.mark.parametrize(
    "upgrade",
    [b"Upgrade: websocket\r\nConnection: upgrade\r\n", b"Upgrade: websocket\r\nConnection: Upgrade\r\n"],
)
async def test_an_upgrade_is_not_taken_up(edge: Edge, upgrade: bytes) -> None:
    async with await edge.connect() as client:
        await client.send(post("/v1/embeddings", b"{}", AUTH + upgrade) + SMUGGLED)
        answer = await client.answer()
        assert answer.status == 200
        assert answer.headers["connection"] == "close"
        assert await client.rest() == b""


async def test_an_offer_of_http2_keeps_the_connection(edge: Edge) -> None:
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQ\r\n"
    async with await edge.connect() as client:
        for _ in range(3):
            await client.send(post("/v1/embeddings", b"{}", AUTH + offer))
            answer = await client.answer()
            assert answer.status == 200
            assert "connection" not in answer.headers


async def test_connect_is_no_route(edge: Edge) -> None:
    answer = await edge.ask(b"CONNECT elsewhere:80 HTTP/1.1\r\nHost: elsewhere:80\r\n\r\n" + SMUGGLED)
    assert (answer.status, answer.headers["connection"]) == (404, "close")


async def test_http10_closes_unless_asked_to_keep(edge: Edge) -> None:
    async with await edge.connect() as client:
        await client.send(b"GET /livez HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert (await client.answer()).headers["connection"] == "keep-alive"
        await client.send(b"GET /livez HTTP/1.0\r\n\r\n")
        assert (await client.answer()).headers["connection"] == "close"
        assert await client.rest() == b""


async def test_connection_close_is_honoured(edge: Edge) -> None:
    async with await edge.connect() as client:
        await client.send(get("/livez", b"Connection: close\r\n"))
        assert (await client.answer()).headers["connection"] == "close"
        assert await client.rest() == b""


async def test_bytes_behind_the_last_request_do_not_take_the_answer_with_them(edge: Edge) -> None:
    edge.server.draining = True
    async with await edge.connect() as client:
        await client.send(get("/livez"))
        await eventually(lambda: edge.server.connections != [])
        await asyncio.sleep(0.02)
        await client.send(get("/livez") * 20)
        await asyncio.sleep(0.02)
        answer = await client.answer()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert await client.rest() == b""


async def test_line_ends_between_requests_are_nothing(edge: Edge) -> None:
    async with await edge.connect() as client:
        await client.send(b"\r\n\r\n" + get("/livez") + b"\r\n")
        assert (await client.answer()).status == 200
        await client.send(b"\r\n")
        await asyncio.sleep(0.02)
        await client.send(get("/livez"))
        assert (await client.answer()).status == 200


async def test_a_length_that_nobody_can_send_is_too_large(edge: Edge) -> None:
    async with await edge.connect() as client:
        await client.send(
            b"POST /v1/embeddings HTTP/1.1\r\n"
            + HOST
            + AUTH
            + b"Content-Length: 18446744073709551615\r\n\r\n"
        )
        answer = await client.answer()
        assert (answer.status, answer.error["code"]) == (413, "request_too_large")
        await client.send(SMUGGLED)
        assert await client.rest() == b""


# The client goes away


class Cancelled:
    """A pipeline that waits in one phase and notes how it ended."""

    def __init__(self, phase: str) -> None:
        self.phase = phase
        self.waiting = asyncio.Event()
        self.ended: BaseException | None = None

    @property
    def has_ended(self) -> bool:
        return self.ended is not None

    async def __call__(self, exchange: Exchange, body: RequestBody) -> None:
        try:
            if self.phase == "body":
                self.waiting.set()
            await body.read(1_000_000)
            if self.phase == "silent":
                exchange.downstream.start(200, JSON, None, b"begun")
            self.waiting.set()
            if self.phase == "blocked":
                exchange.downstream.start(200, JSON, None)
                while not exchange.downstream.paused:
                    exchange.downstream.write(b"x" * 65_536)
                await exchange.downstream.drain()
            await asyncio.Event().wait()
        except BaseException as error:
            self.ended = error
            raise


@pytest.mark.parametrize("phase", ["body", "head", "silent", "blocked"])
@pytest.mark.parametrize("leaving", ["half-close", "close", "reset"])
async def test_a_client_that_leaves_cancels_what_is_done_for_it(edge: Edge, phase: str, leaving: str) -> None:
    pipeline = Cancelled(phase)
    edge.handler = pipeline
    client = await edge.connect(receive_buffer=4096)
    request = post("/v1/embeddings", b"x" * 100_000)
    await client.send(request[:-1] if phase == "body" else request)
    await pipeline.waiting.wait()
    await asyncio.sleep(0.02)
    assert not pipeline.has_ended
    if leaving == "half-close":
        client.half_close()
    elif leaving == "close":
        client.raw.close()
    else:
        client.reset()
    await eventually(lambda: pipeline.has_ended, 1.0)
    assert isinstance(pipeline.ended, asyncio.CancelledError)
    await eventually(lambda: edge.server.inflight == 0)
    await eventually(lambda: not edge.server.connections)
    client.raw.close()


@pytest.mark.parametrize("half", [False, True])
async def test_a_client_that_leaves_is_noticed_while_nothing_more_is_read_from_it(
    edge: Edge, half: bool
) -> None:
    cancelled = asyncio.Event()
    begun = 0

    async def wait(exchange: Exchange, body: RequestBody) -> None:
        nonlocal begun
        begun += 1
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    edge.handler = wait
    async with await edge.connect() as client:
        await client.send(post("/v1/embeddings", b"{}") * 100)
        await eventually(lambda: begun == 1)
        if half:
            client.raw.shutdown(socket.SHUT_WR)
        else:
            client.raw.close()
        async with asyncio.timeout(1):
            await cancelled.wait()
        await eventually(lambda: not edge.server.connections)
    assert begun == 1


async def test_a_half_close_right_behind_the_request_counts_as_gone(edge: Edge) -> None:
    pipeline = Cancelled("head")
    edge.handler = pipeline
    async with await edge.connect() as client:
        await client.send(post("/v1/embeddings", b"{}"))
        client.half_close()
        assert await client.rest() == b""
        await eventually(lambda: edge.server.inflight == 0 and not edge.server.connections)
        assert pipeline.ended is None or isinstance(pipeline.ended, asyncio.CancelledError)


async def test_an_aborted_connection_leaves_no_timer_behind(edge: Edge) -> None:
    for request in (get("/livez")[:10], post("/v1/embeddings", b"x" * 100)[:-10], b"nonsense\r\n\r\n"):
        client = await edge.connect()
        await client.send(request)
        await asyncio.sleep(0.02)
        client.reset()
    await eventually(lambda: not edge.server.connections)
    assert not any(edge.timers._buckets.values())


# Endings


async def test_a_refused_upload_can_read_its_answer_before_the_connection_ends(edge: Edge) -> None:
    async with await edge.connect() as client:
        await client.send(post("/v1/embeddings", b"x" * 4_000_000, b""))
        answer = await client.answer()
        assert (answer.status, answer.headers["connection"]) == (401, "close")
        assert await client.rest() == b""


async def test_a_small_unread_rest_is_read_away_and_the_connection_kept(edge: Edge) -> None:
    async with await edge.connect() as client:
        request = post("/v1/embeddings", b"x" * 200_000, b"")
        await client.send(request[:1_000])
        assert (await client.answer()).status == 401
        await client.send(request[1_000:])
        await client.send(post("/v1/embeddings", b"{}"))
        assert (await client.answer()).status == 200


async def test_an_unread_rest_that_never_comes_ends_the_connection() -> None:
    limits = ConnectionLimits(discard_seconds=0.1, linger_pause_seconds=0.1)
    async with running_edge(EdgeSettings(max_inflight=9, connection=limits)) as edge:
        async with await edge.connect() as client:
            await client.send(post("/v1/embeddings", b"x" * 200_000, b"")[:1_000])
            assert (await client.answer()).status == 401
            assert await client.rest() == b""
        await eventually(lambda: not edge.server.connections)


async def test_lingering_is_limited() -> None:
    limits = ConnectionLimits(linger_seconds=0.3, linger_pause_seconds=0.05)
    async with running_edge(EdgeSettings(max_inflight=9, connection=limits)) as edge:
        async with await edge.connect() as client:
            await client.send(b"nonsense\r\n\r\n")
            assert (await client.answer()).status == 400
            with pytest.raises((BrokenPipeError, ConnectionResetError)):
                await asyncio.wait_for(_slowloris(client), 5)
        async with await edge.connect() as client:
            await client.send(b"nonsense\r\n\r\n")
            await eventually(lambda: not edge.server.connections)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(1, 900), max_size=6), noise=st.binary(max_size=40))
def test_no_division_into_segments_changes_the_answers(cuts: list[int], noise: bytes) -> None:
    """Three requests and a malformed one give three answers and a refusal however they are cut."""
    stream = post("/v1/embeddings", b"first") + _chunked_head() + b"5\r\nthird\r\n0\r\n\r\n"
    asyncio.run(_cut(stream, sorted({cut for cut in cuts if cut < len(stream)}), noise))


async def _cut(stream: bytes, cuts: list[int], noise: bytes) -> None:
    async with running_edge() as edge, await edge.connect() as client:
        for start, end in itertools.pairwise([0, *cuts, len(stream)]):
            await client.send(stream[start:end])
            await asyncio.sleep(0)
        bodies = [(await client.answer()).json()["body"] for _ in range(2)]  # type: ignore[index]
        assert bodies == ["first", "third"]
        await client.send(b"\x00" + noise)
        client.half_close()
        assert b"HTTP/1.1 400" in await client.rest()
