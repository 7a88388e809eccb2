from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import Callable
from contextlib import aclosing

import pytest

from fastllm_proxy.accept import EdgeSettings
from fastllm_proxy.body import BodyBudget, BodyLimits, RequestBody
from fastllm_proxy.errors import Refused
from fastllm_proxy.exchange import Exchange
from fastllm_proxy.inflation import KEPT_BYTES
from tests.fakes.edge import (
    AUTH,
    JSON,
    MAX_BODY,
    Edge,
    Handler,
    echo,
    echo_pieces,
    eventually,
    get,
    post,
    running_edge,
)

either = pytest.mark.parametrize("handler", [echo, echo_pieces])
"""A body read whole, and one taken piece by piece."""

HEAD = b"POST /v1/embeddings HTTP/1.1\r\nHost: gateway\r\n" + AUTH


def chunked(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


async def seen_body(edge: Edge, request: bytes) -> str:
    answer = await edge.ask(request)
    assert answer.status == 200, answer
    return str(answer.json()["body"])  # type: ignore[index]


@either
@pytest.mark.parametrize("size", [0, 1, 1_000, 65_536, 300_000, MAX_BODY])
async def test_a_body_arrives_whole(handler: Handler, size: int) -> None:
    body = bytes(range(97, 123)) * (size // 26) + b"x" * (size % 26)
    async with running_edge() as edge:
        edge.handler = handler
        assert await seen_body(edge, post("/v1/embeddings", body)) == body.decode()
        pieces = [body[start : start + 7_000] for start in range(0, size, 7_000)]
        request = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(*pieces)
        assert await seen_body(edge, request) == body.decode()


@either
async def test_one_byte_over_the_limit_is_too_large(handler: Handler) -> None:
    async with running_edge() as edge:
        edge.handler = handler
        body = b"x" * (MAX_BODY + 1)
        for request in (
            post("/v1/embeddings", body),
            HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(body),
        ):
            answer = await edge.ask(request)
            assert answer.status == 413
            assert answer.error["code"] == "request_too_large"
        assert edge.server._budget.held == 0


@either
async def test_a_declared_length_is_refused_before_the_body_is_sent(handler: Handler) -> None:
    async with running_edge() as edge, await edge.connect() as client:
        edge.handler = handler
        await client.send(HEAD + b"Content-Length: %d\r\n\r\n" % (MAX_BODY + 1))
        assert (await client.answer()).status == 413


@either
async def test_chunks_are_refused_as_they_stream_in(handler: Handler) -> None:
    async with running_edge() as edge, await edge.connect() as client:
        edge.handler = handler
        await client.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        piece = b"%x\r\n%b\r\n" % (100_000, b"x" * 100_000)
        for _ in range(11):
            await client.send(piece)
        answer = await client.answer()  # the last chunk has not been sent
        assert answer.status == 413
        assert await client.rest() == b""


@either
async def test_continue_is_sent_after_authentication_only(handler: Handler) -> None:
    expecting = b"Expect: 100-Continue\r\nContent-Length: 5\r\n\r\n"
    async with running_edge() as edge:
        edge.handler = handler
        async with await edge.connect() as client:
            await client.send(HEAD + expecting)
            assert await client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            await client.send(b"hello" + get("/livez"))
            assert (await client.answer()).json()["body"] == "hello"  # type: ignore[index]
            assert (await client.answer()).status == 200
        async with await edge.connect() as client:
            await client.send(HEAD.replace(AUTH, b"") + expecting)
            answer = await client.answer()
            # Nobody can tell whether the client will send the body after this: the connection ends.
            assert (answer.status, answer.headers["connection"]) == (401, "close")
            assert await client.rest() == b""
        async with await edge.connect() as client:
            await client.send(HEAD + expecting.replace(b": 5", b": 5000000"))
            assert (await client.answer()).status == 413
        async with await edge.connect() as client:  # the body is here already: nothing to ask for
            await client.send(HEAD + expecting + b"hello")
            assert (await client.answer()).status == 200
        async with await edge.connect() as client:
            await client.send(HEAD + expecting + b"hel")
            await asyncio.sleep(0.02)
            await client.send(b"lo")
            assert (await client.answer()).status == 200


def limited(**limits: float) -> EdgeSettings:
    return EdgeSettings(max_inflight=9, body=BodyLimits(**limits))


@either
@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: 500000\r\n\r\n",
        b"Content-Length: 5000\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n",
    ],
)
async def test_a_body_that_pauses_is_dropped(handler: Handler, framing: bytes) -> None:
    async with running_edge(limited(pause_seconds=0.15)) as edge, await edge.connect() as client:
        edge.handler = handler
        await client.send(HEAD + framing)
        for _ in range(4):
            await client.send(b"5\r\nhello\r\n")
            await asyncio.sleep(0.05)
        answer = await client.answer()
        assert (answer.status, answer.error["code"]) == (408, "request_timeout")
        assert answer.error["message"] == "the request body paused for too long"
        assert answer.headers["connection"] == "close"
        assert await client.rest() == b""


async def test_a_client_that_is_not_read_from_is_not_the_slow_one() -> None:
    """A form goes to a disk, and disks stall."""

    async def stalls(exchange: Exchange, body: RequestBody) -> None:
        size = 0
        async with aclosing(body.pieces(MAX_BODY)) as pieces:
            async for piece in pieces:
                if not size:
                    await asyncio.sleep(0.5)
                size += len(piece)
        exchange.downstream.send_whole(200, b"", b"%d" % size)

    async with running_edge(limited(pause_seconds=0.1, pace_seconds=0.1)) as edge:
        edge.handler = stalls
        async with await edge.connect() as client:
            await client.send(HEAD + b"Content-Length: 1000000\r\n\r\n" + b"x" * 999_990)
            sending = asyncio.create_task(client.send(b"x" * 10))
            answer = await client.answer()
            await sending
            assert (answer.status, answer.body) == (200, b"1000000")


async def test_a_body_that_trickles_is_dropped_but_a_steady_one_is_not() -> None:
    settings = limited(pause_seconds=0.2, pace_seconds=0.2, bytes_per_second=1_000)
    async with running_edge(settings) as edge:
        async with await edge.connect() as client:
            await client.send(HEAD + b"Content-Length: 500000\r\n\r\n")
            trickle = asyncio.create_task(_send_slowly(client.send, b"x"))
            answer = await client.answer()
            trickle.cancel()
            assert answer.error["message"] == "the request body came too slowly"
        async with await edge.connect() as client:
            await client.send(HEAD + b"Content-Length: 5000\r\n\r\n")
            await _send_slowly(client.send, b"x" * 100, 50)
            assert (await client.answer()).status == 200
    assert not any(edge.timers._buckets.values())


async def _send_slowly(send: Callable[[bytes], object], piece: bytes, times: int = 1_000) -> None:
    for _ in range(times):
        await send(piece)  # type: ignore[misc]
        await asyncio.sleep(0.02)


ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "GZip": gzip.compress,
    "deflate": zlib.compress,
    "Deflate": lambda data: zlib.compress(data, wbits=-15),
    "identity": lambda data: data,
    "": lambda data: data,
    " gzip": lambda data: gzip.compress(data[:70_000]) + gzip.compress(b"") + gzip.compress(data[70_000:]),
}


@either
@pytest.mark.parametrize("name", ENCODERS)
async def test_encoded_bodies_are_decoded(handler: Handler, name: str) -> None:
    async with running_edge() as edge:
        edge.handler = handler
        for body in (b"", b"{}", b'{"a":"%b"}' % (b"xyz" * 200_000), bytes(range(128)) * 4_000):
            header = AUTH + f"Content-Encoding: {name}\r\n".encode()
            assert (
                await seen_body(edge, post("/v1/embeddings", ENCODERS[name](body), header)) == body.decode()
            )
        assert edge.server._budget.held == 0


@either
@pytest.mark.parametrize("name", ["br", "zstd", "gzip, gzip", "gzip,identity", "compress", "gzip\u00e9"])
async def test_other_encodings_are_415(handler: Handler, name: str) -> None:
    async with running_edge() as edge:
        edge.handler = handler
        answer = await edge.ask(
            post("/v1/embeddings", b"{}", AUTH + f"Content-Encoding: {name}\r\n".encode())
        )
        assert (answer.status, answer.error["code"]) == (415, "unsupported_encoding")


WHOLE = gzip.compress(b"hello" * 1_000, mtime=0)


@either
@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("gzip", b"not gzip at all"),
        ("gzip", WHOLE[:-9]),
        ("gzip", WHOLE[:-1]),
        ("gzip", WHOLE + b"trailing"),
        ("gzip", WHOLE + WHOLE[:-1]),
        ("gzip", WHOLE + b"\x1f"),
        ("gzip", WHOLE + zlib.compress(b"other")),
        ("gzip", WHOLE + bytes(512)),
        ("deflate", zlib.compress(b"one") + zlib.compress(b"two")),
        ("gzip", WHOLE[:20] + b"\xff\xff\xff" + WHOLE[23:]),
        ("deflate", b"\x78\x9c\xff\xff\xff"),
        ("deflate", b"\x00\xff"),
    ],
    ids=(
        "no gzip",
        "without its end",
        "one byte short",
        "more behind it",
        "second member short",
        "second member barely begun",
        "second member of another format",
        "padded",
        "zlib has one member",
        "damaged",
        "damaged zlib",
        "damaged deflate",
    ),
)
async def test_what_does_not_decode_is_400(handler: Handler, name: str, data: bytes) -> None:
    async with running_edge() as edge:
        edge.handler = handler
        answer = await edge.ask(post("/v1/embeddings", data, AUTH + f"Content-Encoding: {name}\r\n".encode()))
        assert (answer.status, answer.error["code"]) == (400, "invalid_encoding")
        assert edge.server._budget.held == 0


async def test_a_bomb_is_refused_at_the_limit_and_lets_others_in_between() -> None:
    squeezed = zlib.compressobj(9, wbits=31)
    bomb = b"".join(squeezed.compress(bytes(1 << 20)) for _ in range(40)) + squeezed.flush()
    assert len(bomb) < MAX_BODY
    async with running_edge() as edge:
        edge.handler = _read_up_to(32 << 20)
        budget = edge.server._budget = _Highest(1 << 30)
        async with await edge.connect() as client:
            await client.send(post("/v1/embeddings", bomb, AUTH + b"Content-Encoding: gzip\r\n"))
            await eventually(lambda: budget.held > len(bomb))
            assert (await edge.ask(get("/livez"))).status == 200
            assert edge.server.inflight == 1
            answer = await client.answer()
            assert (answer.status, answer.error["code"]) == (413, "request_too_large")
        assert budget.held == 0
        assert budget.highest <= len(bomb) + KEPT_BYTES


class _Highest(BodyBudget):
    """Remembers the most that was ever held."""

    highest = 0

    def take(self, size: int) -> None:
        super().take(size)
        self.highest = max(self.highest, self.held)


def _read_up_to(limit: int) -> Handler:
    async def handler(exchange: Exchange, body: RequestBody) -> None:
        await body.read(limit)
        exchange.downstream.send_whole(200, JSON, b"{}")

    return handler


async def test_all_bodies_together_stay_within_the_budget() -> None:
    async with running_edge(EdgeSettings(max_inflight=9, max_buffered_bytes=1_000_000)) as edge:
        first, second = await edge.connect(), await edge.connect()
        await first.send(HEAD + b"Content-Length: 800000\r\n\r\n" + b"x" * 700_000)
        await eventually(lambda: edge.server._budget.held == 700_000)
        await second.send(post("/v1/embeddings", b"x" * 400_000))
        answer = await second.answer()
        assert (answer.status, answer.error["code"]) == (503, "overloaded")
        assert int(answer.headers["retry-after"]) >= 1
        assert (await edge.ask(post("/v1/embeddings", b"x" * 200_000))).status == 200
        await first.send(b"x" * 100_000)
        assert (await first.answer()).status == 200
        assert edge.server._budget.held == 0
        assert (await edge.ask(post("/v1/embeddings", b"x" * 900_000))).status == 200
        first.raw.close()
        second.raw.close()


async def test_a_client_that_leaves_gives_its_memory_back() -> None:
    async with running_edge() as edge:
        client = await edge.connect()
        await client.send(post("/v1/embeddings", b"x" * 500_000)[:-1])
        await eventually(lambda: edge.server._budget.held > 0)
        client.raw.close()
        await eventually(lambda: edge.server.inflight == 0)
        assert edge.server._budget.held == 0


def test_a_budget_takes_nothing_when_it_refuses() -> None:
    budget = BodyBudget(100)
    budget.take(60)
    with pytest.raises(Refused) as refusal:
        budget.take(41)
    assert refusal.value.status == 503
    budget.take(40)
    budget.give_back(100)
    assert budget.held == 0
