from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Awaitable, Callable

import pytest

from fastllm_proxy.errors import ConnectionReset, UpstreamTimeout
from fastllm_proxy.sending import JOINED_BYTES, UNSENT_BYTES
from fastllm_proxy.upstream import UpstreamConnection, UpstreamPool
from tests.fakes.engine import Answer, FakeEngine, Fault
from tests.fakes.upstreams import BODY, CHAT, pool_to, read_all, read_by_pieces, request

PIECE = bytes(range(256)) * 128
"""32 KiB."""


class Pieces:
    """A body that comes in `count` pieces; `given` counts those that were asked for."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.given = 0
        self.head = request(count * len(PIECE))

    async def __call__(self) -> bytes:
        await asyncio.sleep(0)
        if not self.left:
            return b""
        self.left -= 1
        self.given += 1
        return PIECE


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
async def test_head_and_body_arrive_as_given(
    engine: FakeEngine, connection: UpstreamConnection, kind: Callable[[bytes], bytes]
) -> None:
    connection.send(request(len(BODY)), kind(BODY))
    await connection.head(5)
    assert engine.requests[0].head + b"\r\n\r\n" == request(len(BODY))
    assert engine.requests[0].body == BODY


@pytest.mark.parametrize("size", [10, JOINED_BYTES, 5_000_000])
async def test_a_spliced_body_arrives_whole(
    engine: FakeEngine, connection: UpstreamConnection, size: int
) -> None:
    body = bytes(range(256)) * (size // 256) + b"tail"
    view = memoryview(body)
    connection.send(request(len(body) + 5), view[:7], b"hello", view[7:])
    await connection.head(5)
    assert engine.requests[0].body == body[:7] + b"hello" + body[7:]


async def test_head_and_a_small_body_leave_in_one_send() -> None:
    arrivals: asyncio.Queue[bytes] = asyncio.Queue()

    class Listener(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            arrivals.put_nowait(data)

    server = await asyncio.get_running_loop().create_server(Listener, "127.0.0.1")
    connection = await pool_to(server.sockets[0].getsockname()[1]).connect()
    for size in (0, 1_000, 40_000):
        connection.send(request(size), b"x" * size)
        assert await asyncio.wait_for(arrivals.get(), 5) == request(size) + b"x" * size
    connection.abort()
    server.close()


async def test_a_large_body_is_not_copied(engine: FakeEngine, connection: UpstreamConnection) -> None:
    engine.accepting = "stall"
    stalled = await pool_to(engine.port).connect()
    body = bytes(32_000_000)
    tracemalloc.start()
    try:
        stalled.send(request(len(body)), body)
        await asyncio.sleep(0)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    stalled.abort()


# Piece by piece.


async def test_a_body_sent_piece_by_piece_arrives_whole(engine: FakeEngine, pool: UpstreamPool) -> None:
    connection = await pool.connect()
    for count in (0, 1, 3, 300):
        pieces = Pieces(count)
        await connection.send_from(pieces.head, pieces, 5)
        assert await read_by_pieces(connection)
        assert engine.requests[-1].body == PIECE * count
    connection.release()
    assert pool.idle == 1


async def test_no_more_is_read_from_the_source_than_the_engine_takes(
    engine: FakeEngine, pool: UpstreamPool
) -> None:
    engine.accepting = "deaf"
    connection = await pool.connect()
    pieces = Pieces(10_000)
    sending = asyncio.create_task(connection.send_from(pieces.head, pieces, 5))
    given = -1
    while given != pieces.given:
        given = pieces.given
        await asyncio.sleep(0.05)
    assert connection._transport is not None
    held = connection._transport.get_write_buffer_size()
    assert UNSENT_BYTES < held <= UNSENT_BYTES + len(PIECE)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    connection.release()
    assert pool.idle == 0
    assert connection._transport is None


async def test_an_engine_that_takes_nothing_is_given_up(engine: FakeEngine, pool: UpstreamPool) -> None:
    engine.accepting = "deaf"
    connection = await pool.connect()
    pieces = Pieces(10_000)
    await connection.send_from(pieces.head, pieces, 0.05)
    assert pieces.left
    with pytest.raises(UpstreamTimeout) as caught:
        await connection.head(5)
    assert caught.value.phase == "send"
    assert str(caught.value) == "no more of the request taken within 0.05 s"
    connection.release()
    assert pool.idle == 0


async def test_an_engine_that_takes_bytes_slowly_is_not_given_up(
    engine: FakeEngine, pool: UpstreamPool
) -> None:
    connection = await pool.connect()
    pieces = Pieces(1_000)
    sending = asyncio.create_task(connection.send_from(pieces.head, pieces, 5))
    await asyncio.sleep(0.02)
    transport = engine.connections[0]._transport
    for _ in range(5):
        transport.pause_reading()
        await asyncio.sleep(0.02)
        transport.resume_reading()
        await asyncio.sleep(0)
    await sending
    await read_by_pieces(connection)
    assert len(engine.requests[0].body) == 1_000 * len(PIECE)
    connection.abort()


async def test_an_answer_ends_the_sending_and_the_reuse(engine: FakeEngine, pool: UpstreamPool) -> None:
    engine.script(CHAT, Answer(status=413, early=True, body=b"too much"))
    connection = await pool.connect()
    pieces = Pieces(10_000)
    await connection.send_from(pieces.head, pieces, 5)
    assert pieces.left
    assert (await connection.head(5)).status == 413
    assert await read_all(connection) == b"too much"
    connection.release()
    assert pool.idle == 0
    await asyncio.wait_for(engine.connections[0].closed.wait(), 1)


async def test_an_answer_that_comes_while_the_source_is_waited_for(
    engine: FakeEngine, pool: UpstreamPool
) -> None:
    engine.script(CHAT, Answer(status=413, early=True, body=b"too much"))
    connection = await pool.connect()

    async def slow() -> bytes:
        await asyncio.sleep(0.05)
        return PIECE

    await connection.send_from(request(10 * len(PIECE)), slow, 5)
    assert (await connection.head(5)).status == 413
    assert await read_all(connection) == b"too much"
    connection.release()  # everything that was given has left, and yet not the whole request
    assert pool.idle == 0


@pytest.mark.parametrize("kind", ["reset", "close"])
async def test_an_engine_that_dies_ends_the_sending(
    engine: FakeEngine, connection: UpstreamConnection, kind: str
) -> None:
    engine.script(CHAT, Answer(fault=Fault(kind)))  # type: ignore[arg-type]
    pieces = Pieces(10_000)
    await connection.send_from(pieces.head, pieces, 5)
    assert pieces.left
    with pytest.raises(ConnectionReset):
        await connection.head(5)


async def test_a_source_that_raises_ends_it(engine: FakeEngine, pool: UpstreamPool) -> None:
    connection = await pool.connect()

    async def broken() -> bytes:
        raise ZeroDivisionError

    source: Callable[[], Awaitable[bytes]] = broken
    with pytest.raises(ZeroDivisionError):
        await connection.send_from(request(5), source, 5)
    connection.release()
    assert pool.idle == 0
    await asyncio.wait_for(engine.connections[0].closed.wait(), 1)


async def test_piece_by_piece_on_one_that_was_closed_while_idle(
    engine: FakeEngine, pool: UpstreamPool
) -> None:
    connection = await pool.connect()
    pieces = Pieces(1)
    await connection.send_from(pieces.head, pieces, 5)
    await read_by_pieces(connection)
    connection.release()
    taken = pool.take()
    assert taken is connection
    engine.connections[0].break_off("close")
    await asyncio.sleep(0.02)
    again = Pieces(1)
    await taken.send_from(again.head, again, 5)
    assert not again.given
    with pytest.raises(ConnectionReset) as caught:
        await taken.head(5)
    assert caught.value.received == 0
