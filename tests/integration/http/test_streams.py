"""Event streams as clients see them: every byte, at once, and signs of life."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fastllm_proxy.relay import HELD_BYTES, RelayTimes
from fastllm_proxy.sse import HELD_BYTES as HIDDEN_BYTES
from fastllm_proxy.sse import PING
from tests.fakes.engine import Answer, EngineConnection, FakeEngine, Fault
from tests.proxy.rig import Client, Gateway, chat, gateway

CHAT = "/chat/completions"
CONTENT = b'data: {"choices":[{"index":0,"delta":{"content":"hi"}}],"usage":null}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"
SEEN: dict[str, Any] = {"stream_options": {"include_usage": True}}
PINGS = RelayTimes(ping=0.2)


@contextlib.asynccontextmanager
async def streaming(
    folder: Path, answer: Answer, *, times: RelayTimes | None = None, path: str = "/v1" + CHAT, **members: Any
) -> AsyncIterator[tuple[Gateway, Client, EngineConnection]]:
    """A client that has asked for a stream, and the engine's side of it."""
    async with FakeEngine.start() as engine:
        engine.script(path, answer)
        async with gateway(folder, engine, times=times) as proxy:
            client = await proxy.connect()
            client.send(path, body=chat(stream=True, **members))
            try:
                yield proxy, client, (await engine.arrived(1)).connection
            finally:
                client.close()


def begun(*events: bytes, **changes: Any) -> Answer:
    """A stream that does not end: what follows is written by the test."""
    return Answer(events=events, fault=Fault("stall", at="mid_body", after=len(events)), **changes)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def rest_of(client: Client) -> bytes:
    """What still comes, until the end or the cut."""
    got = b""
    with contextlib.suppress(asyncio.IncompleteReadError):
        while piece := await client.piece():
            got += piece
    return got


async def posted(folder: Path, answer: Answer, **members: Any) -> bytes:
    """The body that a client gets, which must be whole."""
    async with streaming(folder, answer, **members) as (_, client, _):
        got = await client.answer()
        assert got.whole
        return got.body


async def test_each_event_is_seen_before_the_engine_sends_the_next(tmp_path: Path) -> None:
    event = b'data: {"choices":[{"delta":{"content":"%b"}}]}\n\n'
    first, *others = [event % (b"%03d" % n).ljust(247 - len(event) + 2, b"x") for n in range(40)]
    assert len(first) == 247
    async with streaming(tmp_path, begun(first)) as (_, client, engine):
        await client.head()
        assert await client.piece() == first
        for other in others:
            engine.write(chunk(other))
            assert await client.piece() == other
        engine.write(chunk(DONE) + b"0\r\n\r\n")
        assert await client.piece() == DONE
        assert await client.piece() == b""


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("asks", [False, True])
async def test_one_byte_chunks_with_every_kind_of_line(tmp_path: Path, end: bytes, asks: bool) -> None:
    before = (
        b": welcome\n\nid: 7\nevent: message\nretry: 50\n" + CONTENT + b"data:no space\ndata: two lines\n\n"
    )
    after = b": note\n\n" + DONE
    lines = [part.replace(b"\n", end) for part in (before, USAGE, after)]
    whole = b"".join(lines)
    pieces = tuple(whole[at : at + 1] for at in range(len(whole)))
    body = await posted(tmp_path, Answer(events=pieces), **(SEEN if asks else {}))
    assert body == (whole if asks else lines[0] + lines[2])


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
async def test_the_usage_event_is_hidden_wherever_the_stream_is_cut(tmp_path: Path, end: bytes) -> None:
    content, usage, done = (event.replace(b"\n", end) for event in (CONTENT, USAGE, DONE))
    async with FakeEngine.start() as engine, gateway(tmp_path, engine) as proxy:
        whole = usage + done
        client = await proxy.connect()
        for at in range(1, len(whole), 3):
            engine.script(CHAT, Answer(events=(content, whole[:at], whole[at:])))
            client.send(body=chat(stream=True))
            assert (await client.answer()).body == content + done
        client.close()
        events = [await proxy.events.get(n) for n in range(1, len(proxy.events.all) + 1)]
        assert {(event.prompt_tokens, event.completion_tokens) for event in events} == {(3, 2)}


@pytest.mark.parametrize(
    "kept",
    [
        b'data: {"choices":[],"usage":null}\n\n',
        b'data: {"choices":[{"delta":{"content":"bye"}}],"usage":{"prompt_tokens":3}}\n\n',
        b'data: {"choices":[{"delta":{"content":"{\\"choices\\":[],\\"usage\\":{\\"a\\":1}}"}}]}\n\n',
        b'data: {"choices":[{"delta":{"content":"\xe2\x82\xac"}}]}\n\n',
    ],
)
async def test_what_is_no_usage_event_stays(tmp_path: Path, kept: bytes) -> None:
    for size in (None, 1, 5):
        answer = Answer(events=(CONTENT, kept, USAGE, DONE), bytes_per_send=size)
        assert await posted(tmp_path, answer) == CONTENT + kept + DONE


async def test_a_usage_event_that_nothing_closes_is_hidden_too(tmp_path: Path) -> None:
    assert await posted(tmp_path, Answer(events=(CONTENT, USAGE[:-2]))) == CONTENT
    assert await posted(tmp_path, Answer(events=(CONTENT, CONTENT[:-2]))) == CONTENT + CONTENT[:-2]


@pytest.mark.parametrize(
    "size", [HIDDEN_BYTES - 1, HIDDEN_BYTES, HIDDEN_BYTES + 1, HELD_BYTES, HELD_BYTES + 1]
)
async def test_events_as_long_as_what_is_held(tmp_path: Path, size: int) -> None:
    event = b'data: {"choices":[{"delta":{"content":"'.ljust(size - 7, b"x") + b'"}}]}\n\n'
    for pieces in ((event, USAGE, DONE), (event[:-9], event[-9:] + USAGE[:9], USAGE[9:] + DONE)):
        assert await posted(tmp_path, Answer(events=pieces)) == event + DONE


async def test_a_line_of_16_mb_in_small_pieces(tmp_path: Path) -> None:
    line = b'data: {"choices":[{"delta":{"content":"' + b"x" * 16_000_000 + b'"}}]}\n\n'
    pieces = tuple(line[at : at + 4096] for at in range(0, len(line), 4096))
    assert await posted(tmp_path, Answer(events=(*pieces, USAGE, DONE))) == line + DONE


async def test_an_unfinished_event_that_is_long_does_not_wait_for_its_end(tmp_path: Path) -> None:
    part = b"data: ".ljust(HIDDEN_BYTES + 1, b"x")
    async with streaming(tmp_path, begun(CONTENT)) as (_, client, engine):
        await client.head()
        assert await client.piece() == CONTENT
        engine.write(chunk(part))
        assert await client.piece() == part
        engine.write(chunk(b"y"))
        assert await client.piece() == b"y"
        engine.write(chunk(b"\n\n" + USAGE + DONE))
        assert await client.piece() == b"\n\n" + DONE


async def test_a_silent_stream_is_pinged_until_it_speaks_again(tmp_path: Path) -> None:
    async with streaming(tmp_path, begun(CONTENT), times=PINGS) as (proxy, client, engine):
        await client.head()
        assert [await client.piece() for _ in range(3)] == [CONTENT, PING, PING]
        engine.write(chunk(CONTENT))
        while (piece := await client.piece()) == PING:
            pass
        assert piece == CONTENT
        assert await client.piece() == PING
        engine.write(chunk(USAGE) + chunk(DONE) + b"0\r\n\r\n")
        assert (await rest_of(client)).replace(PING, b"") == DONE
        event = await proxy.events.get()
        assert (event.status, event.prompt_tokens, event.completion_tokens) == (200, 3, 2)


async def test_a_silent_anthropic_stream_is_pinged_as_well(tmp_path: Path) -> None:
    start = b'event: message_start\ndata: {"type":"message_start","message":{}}\n\n'
    async with streaming(tmp_path, begun(start), times=PINGS, path="/v1/messages") as (_, client, _):
        await client.head()
        assert [await client.piece() for _ in range(2)] == [start, PING]


async def test_the_head_waits_for_a_ping_at_most_and_a_ping_is_no_first_byte(tmp_path: Path) -> None:
    answer = begun(CONTENT, delay_to_body=0.7)
    async with streaming(tmp_path, answer, times=PINGS) as (proxy, client, engine):
        assert (await client.head())[0] == 200
        assert await client.piece() == PING
        while (piece := await client.piece()) == PING:
            pass
        assert piece == CONTENT
        engine.write(chunk(DONE) + b"0\r\n\r\n")
        await rest_of(client)
        event = await proxy.events.get()
        assert event.ttft_ms is not None
        assert event.ttft_ms >= 600


async def test_no_ping_falls_into_an_event(tmp_path: Path) -> None:
    """Without the usage event to be hidden, parts of events pass at once."""
    async with streaming(tmp_path, begun(CONTENT[:30]), times=PINGS, **SEEN) as (
        _,
        client,
        engine,
    ):
        await client.head()
        assert await client.piece() == CONTENT[:30]
        await asyncio.sleep(0.5)
        engine.write(chunk(CONTENT[30:]))
        assert await client.piece() == CONTENT[30:]
        assert await client.piece() == PING


async def test_a_ping_may_come_before_an_event_that_is_held(tmp_path: Path) -> None:
    async with streaming(tmp_path, begun(CONTENT, CONTENT[:30]), times=PINGS) as (_, client, engine):
        await client.head()
        assert [await client.piece() for _ in range(2)] == [CONTENT, PING]
        engine.write(chunk(CONTENT[30:]))
        while (piece := await client.piece()) == PING:
            pass
        assert piece == CONTENT


async def test_a_stream_that_is_cut_is_not_pinged_any_more(tmp_path: Path) -> None:
    async with streaming(tmp_path, begun(CONTENT), times=PINGS) as (proxy, client, engine):
        await client.head()
        assert [await client.piece() for _ in range(2)] == [CONTENT, PING]
        engine.break_off("reset")
        got = await rest_of(client)
        assert got.endswith(b"\n\n")
        assert b'"upstream_disconnected"' in got.split(b"\n\n")[-2]
        assert (await proxy.events.get()).status == 502


async def test_no_pings_unless_asked_for_nor_where_there_are_no_events(tmp_path: Path) -> None:
    plain = Answer(body=b"x" * 200_000, bytes_per_send=100_000, gap=0.5)
    compressed = begun(b"\x1f\x8b", headers=(("content-encoding", "gzip"),))
    for answer, times in ((begun(CONTENT), RelayTimes()), (plain, PINGS), (compressed, PINGS)):
        async with streaming(tmp_path, answer, times=times) as (_, client, _):
            await client.head()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.4):
                    while True:
                        assert PING not in await client.reader.read(1 << 20)


async def test_a_slow_client_is_not_pinged(tmp_path: Path) -> None:
    piece = b"data: " + b"z" * 65_528 + b"\n\n"
    answer = Answer(events=(piece,) * 300)
    async with streaming(tmp_path, answer, times=RelayTimes(ping=0.1)) as (_, client, engine):
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(0.8)
        assert engine.sent < 300 * 65_536
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert (await client.answer()).body == piece * 300


async def test_a_client_that_takes_nothing_is_cut_and_its_engine_let_go(tmp_path: Path) -> None:
    piece = b"data: " + b"z" * 65_528 + b"\n\n"
    answer = Answer(events=(piece,) * 300)
    async with streaming(tmp_path, answer, times=RelayTimes(stalled=0.4)) as (proxy, client, engine):
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        async with asyncio.timeout(5):
            await engine.closed.wait()
        event = await proxy.events.get()
        assert (event.status, event.usage_reported) == (499, False)
        assert '"client_stalled"' in proxy.log_text()
        assert proxy.inflight == 0
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert not (await client.answer()).whole
