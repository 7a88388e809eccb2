from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable

import pytest

from fastllm_proxy.errors import UpstreamTimeout
from fastllm_proxy.upstream import UpstreamConnection, UpstreamPool
from fastllm_proxy.upstream_connection import JOINED_BYTES
from tests.fakes.engine import Answer, FakeEngine, Fault
from tests.fakes.upstreams import (
    BODY,
    CHAT,
    STREAM,
    Reading,
    ask,
    both_ways,
    pool_to,
    read_all,
    request,
)


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


# Reading an answer.


@both_ways
@pytest.mark.parametrize("framing", ["length", "chunked", "eof"])
async def test_a_body_comes_whole_in_each_framing(
    engine: FakeEngine, pool: UpstreamPool, reading: Reading, framing: str
) -> None:
    body = bytes(range(256)) * 2_000
    engine.script(CHAT, Answer(body=body, framing=framing))  # type: ignore[arg-type]
    connection = await pool.connect()
    ask(connection)
    assert await reading(connection) == body
    connection.release()
    assert pool.idle == (framing != "eof")


@both_ways
async def test_a_stream_comes_event_by_event(
    engine: FakeEngine, connection: UpstreamConnection, reading: Reading
) -> None:
    ask(connection, STREAM)
    text = await reading(connection)
    assert text.count(b"data: ") == 9
    assert text.endswith(b"data: [DONE]\n\n")


@both_ways
async def test_nothing_changes_when_every_byte_comes_alone(
    engine: FakeEngine, pool: UpstreamPool, reading: Reading
) -> None:
    events = (b"data: a\n\n", "data: grüß\n\n".encode(), b"data: [DONE]\n\n")
    engine.script(CHAT, Answer(events=events, bytes_per_send=1, interim=(103,), trailers=(("x-sum", "1"),)))
    connection = await pool.connect()
    ask(connection)
    assert await reading(connection) == b"".join(events)
    connection.release()
    assert pool.idle == 1


async def test_the_head_is_the_real_ones_not_an_interim_ones(
    engine: FakeEngine, connection: UpstreamConnection
) -> None:
    engine.script(CHAT, Answer(status=429, interim=(100, 103), headers=(("Retry-After", "7"),)))
    ask(connection)
    head = await connection.head(5)
    assert head.status == 429
    assert (b"retry-after", b"7") in head.headers
    assert b"x-interim" not in dict(head.headers)


async def test_a_head_that_had_already_come_is_there_at_once(
    engine: FakeEngine, connection: UpstreamConnection
) -> None:
    ask(connection)
    request = await engine.arrived(1)
    await request.settled.wait()
    await asyncio.sleep(0.02)
    assert (await connection.head(5)).status == 200


@pytest.mark.parametrize("status", [204, 304])
async def test_statuses_without_a_body(engine: FakeEngine, pool: UpstreamPool, status: int) -> None:
    engine.script(CHAT, Answer(status=status))
    connection = await pool.connect()
    ask(connection)
    assert (await connection.head(5)).content_length == 0
    assert await connection.read(5) == b""
    connection.release()
    assert pool.idle == 1


async def test_head_requests_have_no_body_and_the_next_one_has(
    engine: FakeEngine, pool: UpstreamPool
) -> None:
    connection = await pool.connect()
    for method, has_body in (("HEAD", False), ("GET", True), ("HEAD", False)):
        ask(connection, b"", method=method, path="/v1/models")
        await connection.head(5)
        assert bool(await read_all(connection)) is has_body
        connection.release()
        again = pool.take()
        assert again is connection


async def test_read_hands_out_what_has_come_and_then_the_end(
    engine: FakeEngine, connection: UpstreamConnection
) -> None:
    engine.script(CHAT, Answer(events=(b"one", b"two"), fault=Fault("stall", at="mid_body", after=2)))
    ask(connection)
    await connection.head(5)
    assert await connection.read(5) in (b"one", b"onetwo")
    with pytest.raises(UpstreamTimeout):
        await read_all(connection, 0.05)


async def test_pipe_gives_first_what_had_come_already(
    engine: FakeEngine, connection: UpstreamConnection
) -> None:
    ask(connection)
    await connection.head(5)
    await asyncio.sleep(0.02)
    pieces: list[bytes] = []
    piped = connection.pipe(pieces.append, 5)
    assert piped.done()
    assert len(pieces) == 1
    await piped


async def test_pipe_waits_longer_for_the_first_piece_than_for_the_next(
    engine: FakeEngine, connection: UpstreamConnection
) -> None:
    engine.script(CHAT, Answer(events=(b"one", b"two"), delay_to_body=0.15, gap=0.3))
    ask(connection)
    await connection.head(5)
    pieces: list[bytes] = []
    with pytest.raises(UpstreamTimeout) as late:
        await connection.pipe(pieces.append, 0.05, 5)
    assert late.value.phase == "idle"
    assert len(pieces) == 1
