from __future__ import annotations

import asyncio

import pytest

from fastllm_proxy.errors import UpstreamTimeout
from fastllm_proxy.upstream import UpstreamConnection, UpstreamPool
from tests.fakes.engine import Answer, FakeEngine, Fault
from tests.fakes.upstreams import (
    CHAT,
    STREAM,
    Reading,
    ask,
    both_ways,
    read_all,
)


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
