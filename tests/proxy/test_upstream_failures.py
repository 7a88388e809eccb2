from __future__ import annotations

import asyncio
import socket

import pytest

from fastllm_proxy.errors import BadResponse, ConnectionReset, UpstreamTimeout
from fastllm_proxy.upstream import UpstreamConnection, UpstreamPool
from tests.fakes.answers import FaultKind
from tests.fakes.engine import Answer, FakeEngine, Fault
from tests.fakes.upstreams import (
    CHAT,
    Reading,
    ask,
    both_ways,
    pool_to,
    read_all,
)

SOON = 0.05
"""A timeout that is to strike, in seconds."""


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


@pytest.mark.parametrize("kind", ["reset", "close"])
@pytest.mark.parametrize("size", [100, 16_000_000])
async def test_it_is_known_whether_a_connection_broke_before_all_had_left(kind: FaultKind, size: int) -> None:
    async with FakeEngine.start(receive_buffer=4096) as engine:
        engine.script(CHAT, Answer(fault=Fault(kind)))
        pool = pool_to(engine.port)
        connection = await pool.connect()
        ask(connection, b"x" * size)
        with pytest.raises(ConnectionReset) as broke:
            await connection.head(5)
        assert broke.value.unsent is (size > 1000)
        assert broke.value.received == 0
        await pool.close()


@pytest.mark.parametrize(("size", "phase"), [(100, "head"), (16_000_000, "send")])
async def test_an_engine_that_takes_no_more_of_a_request(size: int, phase: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as never_read:
        pool = pool_to(never_read.getsockname()[1])
        connection = await pool.connect()
        ask(connection, b"x" * size)
        with pytest.raises(UpstreamTimeout) as slow:
            await connection.head(0.2)
        assert slow.value.phase == phase
        await pool.close()
