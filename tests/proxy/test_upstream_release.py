from __future__ import annotations

import asyncio

import pytest

from fastllm_proxy.errors import ConnectionReset, UpstreamError
from fastllm_proxy.upstream import UpstreamConnection, UpstreamPool
from tests.fakes.engine import Answer, FakeEngine, Fault
from tests.fakes.upstreams import (
    CHAT,
    Reading,
    ask,
    read_all,
    read_by_pieces,
    request,
)

SOON = 0.05
"""A timeout that is to strike, in seconds."""


async def test_released_after_a_whole_answer_it_carries_another(
    engine: FakeEngine, pool: UpstreamPool
) -> None:
    connection = await pool.connect()
    assert not connection.reused
    for _ in range(3):
        ask(connection)
        await read_by_pieces(connection)
        connection.release()
        assert pool.idle == 1
        again = pool.take()
        assert again is connection
        assert connection.reused
    assert len(engine.connections) == 1
    assert len(engine.requests) == 3


async def test_what_was_left_unread_does_not_turn_up_in_the_next_answer(
    engine: FakeEngine, pool: UpstreamPool
) -> None:
    engine.script(CHAT, Answer(body=b"somebody else's"), Answer(body=b"mine"))
    connection = await pool.connect()
    ask(connection)
    await connection.head(5)
    await asyncio.sleep(0.02)
    connection.release()
    assert pool.take() is connection
    ask(connection)
    assert await read_by_pieces(connection) == b"mine"
    connection.abort()


NOT_KEPT = {
    "connection: close": Answer(close=True),
    "garbage": Answer(trailing=b"garbage"),
    "a blank line": Answer(trailing=b"\r\n"),
    "a second answer": Answer(trailing=b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"),
    "longer than it says": Answer(body=b"hello", declared_length=3),
    "half closed": Answer(fault=Fault("half_close", at="idle")),
}


@pytest.mark.parametrize("answer", NOT_KEPT.values(), ids=NOT_KEPT)
async def test_answers_after_which_it_is_not_kept(
    engine: FakeEngine, pool: UpstreamPool, answer: Answer
) -> None:
    engine.script(CHAT, answer)
    connection = await pool.connect()
    ask(connection)
    assert (await connection.head(5)).status == 200
    assert await read_all(connection)
    await asyncio.sleep(0.02)
    connection.release()
    assert pool.idle == 0
    await asyncio.wait_for(engine.connections[0].closed.wait(), 1)


async def test_bytes_on_an_idle_connection_close_it(engine: FakeEngine, pool: UpstreamPool) -> None:
    connection = await pool.connect()
    ask(connection)
    await read_by_pieces(connection)
    connection.release()
    assert pool.idle == 1
    engine.connections[0].write(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n")
    await asyncio.wait_for(engine.connections[0].closed.wait(), 1)
    assert pool.idle == 0
    assert pool.take() is None


@pytest.mark.parametrize("reading", [None, read_by_pieces])
async def test_released_before_the_end_it_is_closed(
    engine: FakeEngine, pool: UpstreamPool, reading: Reading | None
) -> None:
    engine.script(CHAT, Answer(events=(b"one", b"two"), fault=Fault("stall", at="mid_body")))
    connection = await pool.connect()
    ask(connection)
    if reading is not None:
        await connection.head(5)
        await connection.read(5)
    connection.release()
    assert pool.idle == 0
    await asyncio.wait_for(engine.connections[0].closed.wait(), 1)


async def test_an_answer_before_the_request_has_left_ends_the_reuse(
    engine: FakeEngine, pool: UpstreamPool
) -> None:
    engine.script(CHAT, Answer(status=413, early=True, delay_to_body=0.2))
    connection = await pool.connect()
    connection.send(request(50_000_000), bytes(50_000_000))
    assert (await connection.head(5)).status == 413
    connection.pause()
    connection.resume()
    assert connection._transport is not None
    assert connection._transport.get_write_buffer_size() > 0
    await read_all(connection)
    connection.release()
    assert pool.idle == 0


async def test_release_and_abort_may_be_said_again(engine: FakeEngine, pool: UpstreamPool) -> None:
    connection = await pool.connect()
    ask(connection)
    await read_by_pieces(connection)
    connection.release()
    connection.release()
    connection.abort()
    assert pool.idle == 1
    assert pool.take() is connection
    connection.abort()
    connection.abort()
    connection.release()
    assert pool.idle == 0


@pytest.mark.parametrize("phase", ["head", "read", "pipe", "paused"])
async def test_a_holder_that_is_cancelled_closes_it_in_every_phase(
    engine: FakeEngine, pool: UpstreamPool, phase: str
) -> None:
    fault = Fault("stall") if phase == "head" else Fault("stall", at="mid_body")
    engine.script(CHAT, Answer(events=(b"one", b"two"), fault=fault))

    async def hold() -> None:
        connection = await pool.connect()
        try:
            ask(connection)
            await connection.head(60)
            if phase == "read":
                await read_all(connection, 60)
            if phase == "paused":
                connection.pause()
            await connection.pipe(lambda piece: None, 60)
        finally:
            connection.release()

    holder = asyncio.create_task(hold())
    await engine.arrived(1)
    await asyncio.sleep(0.02)
    holder.cancel()
    await asyncio.wait_for(engine.connections[0].closed.wait(), 1)
    with pytest.raises(asyncio.CancelledError):
        await holder
    assert pool.idle == 0


async def test_abort_wakes_whoever_waits(engine: FakeEngine, pool: UpstreamPool) -> None:
    engine.script(CHAT, Answer(fault=Fault("stall")))
    connection = await pool.connect()
    ask(connection)
    waiting = asyncio.ensure_future(connection.head(60))
    await asyncio.sleep(0)
    connection.abort()
    with pytest.raises(ConnectionReset):
        await waiting


async def test_sending_on_one_that_was_closed_while_idle(engine: FakeEngine, pool: UpstreamPool) -> None:
    connection = await pool.connect()
    ask(connection)
    await read_by_pieces(connection)
    connection.release()
    taken = pool.take()
    assert taken is not None
    engine.connections[0].break_off("close")
    await asyncio.sleep(0.02)
    ask(taken)
    with pytest.raises(ConnectionReset) as caught:
        await taken.head(5)
    assert caught.value.received == 0
    assert taken.reused


async def test_the_race_with_an_engine_that_closes(engine: FakeEngine, pool: UpstreamPool) -> None:
    connection = await pool.connect()
    ask(connection)
    await read_by_pieces(connection)
    connection.release()
    engine.connections[0].break_off("close")
    taken = pool.take()
    assert taken is connection
    ask(taken)
    with pytest.raises(ConnectionReset) as caught:
        await taken.head(5)
    assert caught.value.received == 0


# Holding back.


async def test_a_pause_holds_the_engine_back_and_loses_nothing(
    engine: FakeEngine, connection: UpstreamConnection
) -> None:
    piece = b"x" * 65_536
    engine.script(CHAT, Answer(events=(piece,) * 400))
    ask(connection)
    await connection.head(5)
    sizes: list[int] = []

    def sink(data: bytes) -> None:
        sizes.append(len(data))
        if len(sizes) == 1:
            connection.pause()

    piped = connection.pipe(sink, SOON)
    await asyncio.sleep(SOON * 4)  # silence of one's own making is no timeout
    assert len(sizes) == 1
    held = engine.connections[0].sent
    assert held < len(piece) * 300
    await asyncio.sleep(0.02)
    assert engine.connections[0].sent == held
    connection.resume()
    await piped
    assert sum(sizes) == 400 * len(piece)
    assert max(sizes[1:]) <= 65_536


async def test_what_nobody_reads_is_bounded(engine: FakeEngine, connection: UpstreamConnection) -> None:
    piece = b"x" * 65_536
    engine.script(CHAT, Answer(events=(piece,) * 400))
    ask(connection)
    await connection.head(5)
    await asyncio.sleep(0.1)
    first = await connection.read(5)
    assert len(first) <= 262_144 + 65_536
    assert len(first) + len(await read_all(connection)) == 400 * len(piece)


async def test_a_sink_that_raises_ends_it(engine: FakeEngine, pool: UpstreamPool) -> None:
    engine.script(CHAT, Answer(events=(b"one", b"two"), gap=0.02))
    connection = await pool.connect()
    ask(connection)
    await connection.head(5)

    def sink(piece: bytes) -> None:
        raise ZeroDivisionError(piece)

    with pytest.raises(ZeroDivisionError):
        await connection.pipe(sink, 5)
    connection.release()
    assert pool.idle == 0
    await asyncio.wait_for(engine.connections[0].closed.wait(), 1)


@pytest.mark.parametrize("at", [1, 2])
async def test_a_sink_may_abort(engine: FakeEngine, connection: UpstreamConnection, at: int) -> None:
    engine.script(CHAT, Answer(events=(b"one", b"two", b"three"), gap=0.02))
    ask(connection)
    await connection.head(5)
    pieces: list[bytes] = []

    def sink(piece: bytes) -> None:
        pieces.append(piece)
        if len(pieces) == at:
            connection.abort()

    with pytest.raises(UpstreamError):
        await connection.pipe(sink, 5)
    assert len(pieces) == at
    await asyncio.wait_for(engine.connections[0].closed.wait(), 1)
