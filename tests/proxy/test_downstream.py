from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from fastllm_proxy.body import RequestBody
from fastllm_proxy.downstream import Downstream, status_line
from fastllm_proxy.exchange import Exchange
from tests.fakes.edge import AUTH, JSON, Client, Edge, eventually, get, post, running_edge

Respond = Callable[[Downstream], None]
OLD = b"POST /v1/embeddings HTTP/1.0\r\nContent-Length: 2\r\n" + AUTH


def test_a_status_line_needs_no_known_status() -> None:
    assert status_line(200) == b"HTTP/1.1 200 OK\r\n"
    assert status_line(599) == b"HTTP/1.1 599 \r\n"


async def _exchange(edge: Edge, request: bytes, respond: Respond) -> bytes:
    """The wire bytes of an answer, read until the connection is closed by `Connection: close`."""

    async def handler(exchange: Exchange, body: RequestBody) -> None:
        await body.read(1_000)
        respond(exchange.downstream)

    edge.handler = handler
    async with await edge.connect() as client:
        await client.send(request)
        return await client.rest()


ONCE = post("/v1/embeddings", b"{}", AUTH + b"Connection: close\r\nx-request-id: r\r\n")


async def test_the_wire_form_of_a_whole_answer() -> None:
    async with running_edge() as edge:
        wire = await _exchange(edge, ONCE, lambda d: d.send_whole(201, b"a: b\r\n", b"body"))
        assert wire == (
            b"HTTP/1.1 201 Created\r\na: b\r\ncontent-length: 4\r\nconnection: close\r\n"
            b"x-request-id: r\r\n\r\nbody"
        )


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, 5_000_000])
async def test_whole_bodies_of_any_size_and_kind(kind: type, size: int) -> None:
    async with running_edge() as edge:
        body = b"0123456789abcdef" * (size // 16) + b"x" * (size % 16)
        wire = await _exchange(edge, ONCE, lambda d: d.send_whole(200, b"", kind(body)))
        head, _, rest = wire.partition(b"\r\n\r\n")
        assert b"content-length: %d\r\n" % size in head
        assert rest == body


async def test_the_wire_form_of_a_stream() -> None:
    def respond(d: Downstream) -> None:
        d.start(200, b"a: b\r\n", None, b"first")
        d.write(b"")
        d.write(b"x" * 70_000)
        d.end()

    async with running_edge() as edge:
        assert await _exchange(edge, ONCE, respond) == (
            b"HTTP/1.1 200 OK\r\na: b\r\ntransfer-encoding: chunked\r\nconnection: close\r\n"
            b"x-request-id: r\r\n\r\n"
            b"5\r\nfirst\r\n11170\r\n" + b"x" * 70_000 + b"\r\n0\r\n\r\n"
        )


async def test_a_stream_of_known_length_is_not_chunked() -> None:
    def respond(d: Downstream) -> None:
        d.start(200, b"", 10, b"first")
        d.write(b"later")
        d.end()

    async with running_edge() as edge:
        wire = await _exchange(edge, ONCE, respond)
        assert wire.endswith(b"content-length: 10\r\nconnection: close\r\nx-request-id: r\r\n\r\nfirstlater")


@pytest.mark.parametrize("status", [204, 304])
async def test_a_status_without_body_has_none(status: int) -> None:
    def stream(d: Downstream) -> None:
        d.start(status, b"", None, b"body")
        d.write(b"body")
        d.end()

    async with running_edge() as edge:
        for respond in (stream, lambda d: d.send_whole(status, b"", b"body")):
            wire = await _exchange(edge, ONCE, respond)
            assert wire.endswith(b"\r\nconnection: close\r\nx-request-id: r\r\n\r\n")
            assert b"length" not in wire
            assert b"chunked" not in wire


async def test_an_old_client_gets_no_chunks() -> None:
    def respond(d: Downstream) -> None:
        d.start(200, b"", None, b"first")
        d.write(b"later")
        d.end()

    async with running_edge() as edge:
        for extra in (b"", b"Connection: keep-alive\r\n"):
            wire = await _exchange(edge, OLD + extra + b"x-request-id: r\r\n\r\n{}", respond)
            assert wire == b"HTTP/1.1 200 OK\r\nconnection: close\r\nx-request-id: r\r\n\r\nfirstlater"


async def test_a_cut_stream_ends_without_the_last_chunk() -> None:
    def respond(d: Downstream) -> None:
        d.start(200, b"", None, b"first")
        d.write(b"last words")
        d.cut()

    async with running_edge() as edge:
        wire = await _exchange(edge, post("/v1/embeddings", b"{}"), respond)
        assert wire.endswith(b"\r\n\r\n5\r\nfirst\r\na\r\nlast words\r\n")
        await eventually(lambda: not edge.server.connections)


async def test_a_cut_body_of_known_length_is_short() -> None:
    def respond(d: Downstream) -> None:
        d.start(200, b"", 100, b"first")
        d.cut()

    async with running_edge() as edge:
        wire = await _exchange(edge, post("/v1/embeddings", b"{}"), respond)
        assert wire.endswith(b"\r\n\r\nfirst")


async def test_a_cut_body_that_only_closing_would_end_is_reset() -> None:
    async with running_edge() as edge:
        started = asyncio.Event()
        proceed = asyncio.Event()

        async def handler(exchange: Exchange, body: RequestBody) -> None:
            exchange.downstream.start(200, b"", None, b"first")
            started.set()
            await proceed.wait()
            exchange.downstream.cut()

        edge.handler = handler
        async with await edge.connect() as client:
            await client.send(OLD + b"\r\n{}")
            await client.until(b"first")
            proceed.set()
            with pytest.raises(ConnectionResetError):
                await client.rest()


class Flood:
    """Writes until the client takes no more, then waits."""

    def __init__(self) -> None:
        self.written = 0
        self.blocked = asyncio.Event()
        self.paused = self.resumed = 0

    async def __call__(self, exchange: Exchange, body: RequestBody) -> None:
        downstream = exchange.downstream
        downstream.follow(self._on_pause, self._on_resume)
        downstream.start(200, JSON, None)
        for _ in range(3):
            while not downstream.paused:
                downstream.write(b"x" * 10_000)
                self.written += 10_000
            self.blocked.set()
            await downstream.drain()
            assert not downstream.paused
        downstream.end()

    def _on_pause(self) -> None:
        self.paused += 1

    def _on_resume(self) -> None:
        self.resumed += 1


async def test_a_slow_client_pauses_the_writer_as_soon_as_anything_waits() -> None:
    flood = Flood()
    async with running_edge() as edge:
        edge.handler = flood
        async with await edge.connect(receive_buffer=4096) as client:
            await client.send(post("/v1/embeddings", b"{}"))
            await flood.blocked.wait()
            (connection,) = edge.server.connections
            assert connection.transport is not None
            assert 0 < connection.transport.get_write_buffer_size() < 20_000
            assert (flood.paused, flood.resumed) == (1, 0)
            answer = await client.answer()
            assert len(answer.body) == flood.written
            assert (flood.paused, flood.resumed) == (3, 3)
            edge.handler = Flood()
            await client.send(post("/v1/embeddings", b"{}"))
            await client.answer()
            assert flood.resumed == 3  # the callback ended with its exchange


async def test_drain_returns_at_once_when_nothing_waits() -> None:
    async def handler(exchange: Exchange, body: RequestBody) -> None:
        await exchange.downstream.drain()
        exchange.downstream.send_whole(200, JSON, b"{}")

    async with running_edge() as edge:
        edge.handler = handler
        assert (await edge.ask(post("/v1/embeddings", b""))).status == 200


async def test_writing_to_a_client_that_has_gone_is_nothing() -> None:
    outcome: list[str] = []
    gone = asyncio.Event()

    async def handler(exchange: Exchange, body: RequestBody) -> None:
        downstream = exchange.downstream
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            downstream.start(200, JSON, None, b"first")
            downstream.write(b"later")
            downstream.end()
            downstream.cut()
            outcome.append("connected" if downstream.connected else "gone")
            gone.set()
            raise

    async with running_edge() as edge:
        edge.handler = handler
        client: Client = await edge.connect()
        await client.send(post("/v1/embeddings", b"{}"))
        await eventually(lambda: edge.server.inflight == 1)
        client.reset()
        await gone.wait()
        assert outcome == ["gone"]
        assert (await edge.ask(get("/livez"))).status == 200
