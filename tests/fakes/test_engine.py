from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.engine import Answer, FakeEngine, Fault, decode_scripts

CHAT = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with FakeEngine.start() as engine:
        yield engine


class Client:
    """A client that shows bytes as they are."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, body: bytes = CHAT, path: str = "/v1/chat/completions", *lines: str) -> None:
        method = "POST" if body else "GET"
        extra = "".join(f"{line}\r\n" for line in (f"content-length: {len(body)}", *lines))
        self.writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\n{extra}\r\n".encode() + body)

    async def answer(self) -> tuple[bytes, bytes]:
        """Head and body, chunks taken apart."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]
        if length:
            return head, await self.reader.readexactly(int(length))
        body = b""
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            body += await self.reader.readexactly(size)
            await self.reader.readexactly(2)
        await self.reader.readexactly(2)
        return head, body


@contextlib.asynccontextmanager
async def client(engine: FakeEngine) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", engine.port)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def test_answers_as_an_engine_would(engine: FakeEngine) -> None:
    async with client(engine) as peer:
        peer.send()
        head, body = await peer.answer()
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert json.loads(body)["choices"][0]["message"]["content"] == "Hello from the fake engine."
        assert json.loads(body)["model"] == "m"
        peer.send(b"", "/v1/models")
        assert json.loads((await peer.answer())[1])["data"][0]["id"] == "fake-model"
        peer.send(b"", "/metrics")
        assert b'vllm:request_success_total{engine="0",finished_reason="stop"' in (await peer.answer())[1]
        peer.send(b"{}", "/v1/nothing")
        head, body = await peer.answer()
        assert head.startswith(b"HTTP/1.1 404")
    assert engine.hits("/chat/completions") == engine.hits("/v1/chat/completions/") == 1


@pytest.mark.parametrize("wanted", [True, False])
async def test_a_stream_has_a_usage_event_when_asked(engine: FakeEngine, wanted: bool) -> None:
    request = {"model": "m", "stream": True, "messages": []}
    if wanted:
        request["stream_options"] = {"include_usage": True}
    async with client(engine) as peer:
        peer.send(json.dumps(request).encode())
        _, body = await peer.answer()
    events = body.decode().split("\n\n")
    assert events[-2] == "data: [DONE]"
    assert [json.loads(event[6:]).get("usage") is not None for event in events[:-2]].count(True) == wanted


async def test_records_what_came_byte_for_byte(engine: FakeEngine) -> None:
    async with client(engine) as peer:
        peer.send(CHAT, "/v1/chat/completions?a=b", "X-Odd:  Two  words ", "x-odd: again")
        await peer.answer()
        peer.send()
        await peer.answer()
    first, second = engine.requests
    assert (first.method, first.path, first.target) == (
        "POST",
        "/v1/chat/completions",
        "/v1/chat/completions?a=b",
    )
    assert first.head.endswith(b"X-Odd:  Two  words \r\nx-odd: again")
    assert first.headers[-2:] == ((b"X-Odd", b"Two  words"), (b"x-odd", b"again"))
    assert first.header("X-ODD") == "Two  words"
    assert first.header("absent") is None
    assert first.body == CHAT
    assert first.json()["model"] == "m"
    assert first.connection is second.connection
    assert first.connection.requests == [first, second]
    assert first.answered_at is not None
    assert first.aborted_at is None


async def test_scripts_are_followed_and_the_last_answer_stays(engine: FakeEngine) -> None:
    engine.script("/chat/completions", Answer(status=503), Answer(status=429))
    async with client(engine) as peer:
        statuses = []
        for _ in range(4):
            peer.send()
            head, body = await peer.answer()
            statuses.append(head.split()[1])
        assert statuses == [b"503", b"429", b"429", b"429"]
        assert json.loads(body)["error"]["message"] == "scripted 429"
        engine.script("/chat/completions")
        peer.send()
        assert (await peer.answer())[0].startswith(b"HTTP/1.1 200")


async def test_chunked_requests_and_100_continue(engine: FakeEngine) -> None:
    async with client(engine) as peer:
        peer.writer.write(
            b"POST /v1/completions HTTP/1.1\r\ntransfer-encoding: chunked\r\nexpect: 100-continue\r\n\r\n"
        )
        assert await peer.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        peer.writer.write(b"3;a=b\r\n{} \r\n1\r\n \r\n0\r\nx: y\r\n\r\n")
        await peer.answer()
    assert engine.requests[0].body == b"{}  "


async def test_an_engine_with_a_key() -> None:
    async with FakeEngine.start(api_key="sk-engine") as engine, client(engine) as peer:
        peer.send()
        assert (await peer.answer())[0].startswith(b"HTTP/1.1 401")
        for line in ("Authorization: Bearer sk-engine", "x-api-key: sk-engine"):
            peer.send(CHAT, "/v1/chat/completions", line)
            assert (await peer.answer())[0].startswith(b"HTTP/1.1 200")


async def test_notes_a_peer_that_leaves(engine: FakeEngine) -> None:
    engine.script("/chat/completions", Answer(fault=Fault("stall")))
    async with client(engine) as peer:
        peer.send()
        request = await engine.arrived(1)
        assert engine.open_connections == 1
        assert not request.settled.is_set()
    await asyncio.wait_for(request.settled.wait(), 5)
    assert request.aborted_at is not None
    assert request.answered_at is None
    assert request.connection.closed_at == request.aborted_at
    assert engine.open_connections == 0


async def test_resets_and_closes(engine: FakeEngine) -> None:
    engine.script(
        "/chat/completions",
        Answer(fault=Fault("reset", at="body")),
        Answer(fault=Fault("close", at="mid_head")),
    )
    async with client(engine) as peer:
        peer.send()
        with pytest.raises(ConnectionResetError):
            await peer.reader.read()
    async with client(engine) as peer:
        peer.send()
        assert b"\r\n\r\n" not in await peer.reader.read()


async def test_a_half_close_leaves_the_other_direction_open(engine: FakeEngine) -> None:
    engine.script("/chat/completions", Answer(fault=Fault("half_close", at="idle")))
    async with client(engine) as peer:
        peer.send()
        assert await peer.reader.read()
        assert engine.open_connections == 1


async def test_answers_before_the_body_has_come(engine: FakeEngine) -> None:
    engine.script("/chat/completions", Answer(status=413, early=True), Answer())
    async with client(engine) as peer:
        peer.writer.write(b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 10\r\n\r\n")
        assert (await peer.answer())[0].startswith(b"HTTP/1.1 413")
        peer.writer.write(b"x" * 10)
        peer.send()
        assert (await peer.answer())[0].startswith(b"HTTP/1.1 200")
    assert engine.requests[0].body == b"x" * 10


@pytest.mark.parametrize("accepting", ["reset", "close"])
async def test_connections_that_are_turned_away(engine: FakeEngine, accepting: str) -> None:
    engine.accepting = "reset" if accepting == "reset" else "close"
    reader, writer = await asyncio.open_connection("127.0.0.1", engine.port)
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""
    writer.close()
    assert engine.requests == []


async def test_idle_connections_are_closed_in_time() -> None:
    async with FakeEngine.start(keep_alive_seconds=0.01) as engine, client(engine) as peer:
        peer.send()
        await peer.answer()
        assert await peer.reader.read() == b""


async def test_counts_what_has_left_and_waits_for_a_slow_reader(engine: FakeEngine) -> None:
    piece = b"x" * 65536
    engine.script("/chat/completions", Answer(events=(piece,) * 1000))
    async with client(engine) as peer:
        peer.send()
        request = await engine.arrived(1)
        await peer.reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.05)
        assert 0 < request.connection.sent < len(piece) * 500
        assert request.answered_at is None


async def test_nonsense_gets_a_400(engine: FakeEngine) -> None:
    async with client(engine) as peer:
        peer.writer.write(b"nonsense\r\n\r\n")
        assert (await peer.reader.read()).startswith(b"HTTP/1.1 400")


def test_scripts_from_json() -> None:
    text = json.dumps({"/models": [{"status": 503, "body": base64.b64encode(b"x").decode()}]}).encode()
    assert decode_scripts(text) == {"/models": [Answer(status=503, body=b"x")]}


async def test_as_a_process(tmp_path: Path) -> None:
    answers = tmp_path / "answers.json"
    answers.write_text('{"/models": [{"status": 418}]}')
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.fakes.engine", "--answers", str(answers), "--model", "a",
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": ""},
    )  # fmt: skip
    assert process.stdout is not None
    url = (await asyncio.wait_for(process.stdout.readline(), 20)).decode().strip()
    assert url.startswith("http://127.0.0.1:")
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.split(":")[2].split("/")[0]))
    writer.write(b"GET /v1/models HTTP/1.1\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 418")
    writer.close()
    process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process.wait(), 10) == 0
