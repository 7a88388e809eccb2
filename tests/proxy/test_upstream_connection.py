from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from fastllm_proxy.errors import BadResponse, ConnectionReset, UpstreamError, UpstreamTimeout
from fastllm_proxy.upstream import UpstreamConnection, UpstreamPool
from fastllm_proxy.upstream_connection import JOINED_BYTES
from tests.fakes.engine import Answer, FakeEngine, Fault
from tests.fakes.upstreams import BODY, CHAT, STREAM, ask, pool_to, read_all, request

SOON = 0.05
"""A timeout that is to strike, in seconds."""


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with FakeEngine.start() as engine:
        yield engine


@pytest.fixture
async def pool(engine: FakeEngine) -> AsyncIterator[UpstreamPool]:
    pool = pool_to(engine.port)
    yield pool
    await pool.close()


@pytest.fixture
async def connection(pool: UpstreamPool) -> AsyncIterator[UpstreamConnection]:
    connection = await pool.connect()
    yield connection
    connection.abort()


async def read_by_pieces(connection: UpstreamConnection, idle_seconds: float = 5.0) -> bytes:
    await connection.head(5)
    return await read_all(connection, idle_seconds)


async def read_by_pipe(connection: UpstreamConnection, idle_seconds: float = 5.0) -> bytes:
    await connection.head(5)
    pieces: list[bytes] = []
    await connection.pipe(pieces.append, idle_seconds)
    return b"".join(pieces)


Reading = Callable[..., Awaitable[bytes]]
both_ways = pytest.mark.parametrize("reading", [read_by_pieces, read_by_pipe])


# What is sent.


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
        await read_all(connection, SOON)


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


# What ends badly.

LIES = {
    "not http": Answer(raw=b"SSH-2.0-OpenSSH_9.9\r\n"),
    "bare line feeds": Answer(raw=b"HTTP/1.1 200 OK\ncontent-length: 0\n\n"),
    "101": Answer(raw=b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"),
    "a 4 MiB header": Answer(headers=(("x-large", "x" * 4_194_304),)),
    "20,000 headers": Answer(headers=tuple((f"x-{n}", "1") for n in range(20_000))),
    "200 headers": Answer(headers=tuple((f"x-{n}", "1") for n in range(200))),
    "interim flood": Answer(interim=(100,) * 10_000),
    "length and chunks": Answer(events=(b"x",), declared_length=1),
    "two lengths": Answer(body=b"hi", headers=(("content-length", "2"), ("content-length", "3"))),
    "gzip, chunked": Answer(events=(b"x",), headers=(("transfer-encoding", "gzip, chunked"),)),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
async def test_a_head_that_is_refused(engine: FakeEngine, pool: UpstreamPool, lie: Answer) -> None:
    engine.script(CHAT, lie)
    connection = await pool.connect()
    ask(connection)
    with pytest.raises(BadResponse):
        await connection.head(5)
    connection.release()
    assert pool.idle == 0
    await asyncio.wait_for(engine.connections[0].closed.wait(), 1)


@both_ways
@pytest.mark.parametrize("error", [-1, 1, 1_000_000])
async def test_chunks_of_another_size_than_they_say(
    engine: FakeEngine, connection: UpstreamConnection, reading: Reading, error: int
) -> None:
    engine.script(
        CHAT, Answer(events=(b"data: one\n\n", b"data: two\n\n"), chunk_size_error=error, close=True)
    )
    ask(connection)
    with pytest.raises((BadResponse, ConnectionReset)):
        await reading(connection)


@both_ways
@pytest.mark.parametrize("kind", ["close", "reset", "half_close"])
@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_death_inside_the_body(
    engine: FakeEngine, pool: UpstreamPool, reading: Reading, kind: str, framing: str
) -> None:
    fault = Fault(kind, at="mid_body", split=True)  # type: ignore[arg-type]
    engine.script(CHAT, Answer(events=(b"x" * 1000, b"y"), framing=framing, fault=fault))  # type: ignore[arg-type]
    connection = await pool.connect()
    ask(connection)
    with pytest.raises(ConnectionReset) as caught:
        await reading(connection)
    assert caught.value.received > 500
    connection.release()
    assert pool.idle == 0


@both_ways
async def test_a_body_until_eof_that_ends_by_a_reset_is_no_whole_one(
    engine: FakeEngine, connection: UpstreamConnection, reading: Reading
) -> None:
    engine.script(CHAT, Answer(events=(b"x",), framing="eof", gap=0.05, fault=Fault("reset", at="mid_body")))
    ask(connection)
    with pytest.raises(ConnectionReset):
        await reading(connection)


@pytest.mark.parametrize("kind", ["close", "reset", "half_close"])
@pytest.mark.parametrize("phase", ["request", "mid_head"])
async def test_death_before_the_head(
    engine: FakeEngine, connection: UpstreamConnection, kind: str, phase: str
) -> None:
    engine.script(CHAT, Answer(fault=Fault(kind, at=phase)))  # type: ignore[arg-type]
    ask(connection)
    with pytest.raises(ConnectionReset) as caught:
        await connection.head(5)
    assert (caught.value.received > 0) is (phase == "mid_head")


async def test_what_came_before_the_death_is_read_first(
    engine: FakeEngine, connection: UpstreamConnection
) -> None:
    engine.script(CHAT, Answer(events=(b"one",), fault=Fault("close", at="mid_body")))
    ask(connection)
    await connection.head(5)
    await asyncio.sleep(0.02)
    assert await connection.read(5) == b"one"
    with pytest.raises(ConnectionReset):
        await connection.read(5)


async def test_what_came_in_one_piece_with_nonsense_is_read_first(
    engine: FakeEngine, connection: UpstreamConnection
) -> None:
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    engine.script(CHAT, Answer(raw=head, fault=Fault("stall", at="idle")))
    ask(connection)
    await connection.head(5)
    engine.connections[0].write(b"3\r\none\r\nnonsense\r\n")
    assert await connection.read(5) == b"one"
    with pytest.raises(BadResponse):
        await connection.read(5)


# Time.


@pytest.mark.parametrize(
    ("fault", "phase"),
    [
        (Fault("stall"), "head"),
        (Fault("stall", at="mid_head"), "head"),
        (Fault("stall", at="body"), "first_byte"),
        (Fault("stall", at="mid_body"), "idle"),
        (Fault("stall", at="end"), "idle"),
    ],
)
@both_ways
async def test_a_stall_at_each_phase(
    engine: FakeEngine, pool: UpstreamPool, reading: Reading, fault: Fault, phase: str
) -> None:
    engine.script(CHAT, Answer(events=(b"one", b"two"), fault=fault))
    connection = await pool.connect()
    ask(connection)
    started = asyncio.get_running_loop().time()
    with pytest.raises(UpstreamTimeout) as caught:
        await (connection.head(SOON) if phase == "head" else reading(connection, SOON))
    assert caught.value.phase == phase
    assert SOON <= asyncio.get_running_loop().time() - started < SOON + 1
    connection.release()
    assert pool.idle == 0
    await asyncio.wait_for(engine.requests[0].settled.wait(), 1)
    assert engine.requests[0].aborted_at is not None


async def test_the_caller_names_the_phase_of_waiting_for_a_head(
    engine: FakeEngine, connection: UpstreamConnection
) -> None:
    engine.script(CHAT, Answer(fault=Fault("stall")))
    ask(connection)
    with pytest.raises(UpstreamTimeout) as caught:
        await connection.head(SOON, "first_byte")
    assert caught.value.phase == "first_byte"


@both_ways
async def test_slow_is_not_idle(engine: FakeEngine, connection: UpstreamConnection, reading: Reading) -> None:
    engine.script(CHAT, Answer(events=(b"x",) * 20, gap=SOON / 2))
    ask(connection)
    assert await reading(connection, SOON * 8) == b"x" * 20


@both_ways
async def test_framing_that_trickles_without_any_body_is_idle(
    engine: FakeEngine, connection: UpstreamConnection, reading: Reading
) -> None:
    extension = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2;" + b"x" * 1000
    engine.script(CHAT, Answer(raw=extension, bytes_per_send=8, gap=SOON / 10))
    ask(connection)
    with pytest.raises(UpstreamTimeout):
        await reading(connection, SOON)


async def test_a_short_wait_after_a_long_one_and_the_other_way_round(
    engine: FakeEngine, pool: UpstreamPool
) -> None:
    connection = await pool.connect()
    engine.script(CHAT, Answer(), Answer(fault=Fault("stall")))
    ask(connection)
    await connection.head(600)
    await read_all(connection, 300)
    ask(connection)
    with pytest.raises(UpstreamTimeout):
        await connection.head(SOON)
    patient = await pool.connect()
    engine.script(CHAT, Answer(), Answer(delay_to_head=SOON * 3))
    ask(patient)
    await patient.head(SOON)
    await read_all(patient, SOON)
    ask(patient)
    assert (await patient.head(5)).status == 200
    patient.abort()


# Giving it back.


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
