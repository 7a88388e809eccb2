"""A mock engine that costs next to nothing, so that a benchmark measures what stands in front of it.

    python -m tests.benchmarks.mock_engine        prints its port, serves until killed

It answers `GET` with a model list and `POST` with a chat completion of 1 KiB, or, where the body says
`"stream":true`, with events and a usage event. A message content `mock:EVENTS:DELAY_MS` sets how many
events come and how far apart. It validates nothing: it is as correct as a load test needs.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import cast

import uvloop

USAGE = {"prompt_tokens": 12, "completion_tokens": 100, "total_tokens": 112}
EVENTS, DELAY_MS = 100, 0.0


def _json_answer() -> bytes:
    answer = {
        "id": "chatcmpl-mock",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "mock-model",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": ""}, "finish_reason": "stop"}],
        "usage": USAGE,
    }
    missing = 1024 - len(json.dumps(answer, separators=(",", ":")))
    answer["choices"][0]["message"]["content"] = "x" * missing  # type: ignore[index]
    return _with_head(json.dumps(answer, separators=(",", ":")).encode())


def _with_head(body: bytes) -> bytes:
    return (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    ) + body


def _event(value: object) -> bytes:
    data = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    event = b"data: " + data.encode() + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(event), event)


CHAT = _json_answer()
MODELS = _with_head(b'{"object":"list","data":[{"id":"mock-model","object":"model"}]}')
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
DELTA = _event({"id": "c", "choices": [{"index": 0, "delta": {"content": "tk"}}]})
STREAM_END = (
    _event({"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    + _event({"id": "c", "choices": [], "usage": USAGE})
    + _event("[DONE]")
    + b"0\r\n\r\n"
)


class MockEngine(asyncio.Protocol):
    """One connection. Requests on it are answered one after another."""

    def __init__(self) -> None:
        self._buffer = b""
        self._needed = 0
        self._streaming: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance

    def connection_lost(self, exc: Exception | None) -> None:
        if self._streaming is not None:
            self._streaming.cancel()

    def data_received(self, data: bytes) -> None:
        self._buffer = self._buffer + data if self._buffer else data
        while self._buffer and self._streaming is None and len(self._buffer) >= self._needed:
            head_end = self._buffer.find(b"\r\n\r\n")
            if head_end < 0:
                return
            end = head_end + 4 + self._length(self._buffer[:head_end].lower())
            if len(self._buffer) < end:
                self._needed = end
                return
            request, self._buffer, self._needed = self._buffer[:end], self._buffer[end:], 0
            self._answer(request, request[head_end + 4 :])

    def _length(self, head: bytes) -> int:
        start = head.find(b"\r\ncontent-length:")
        if start < 0:
            return 0
        stop = head.find(b"\r\n", start + 2)
        return int(head[start + 17 : stop if stop > 0 else len(head)])

    def _answer(self, request: bytes, body: bytes) -> None:
        if request.startswith(b"GET"):
            self._transport.write(MODELS)
        elif b'"stream":true' in body:
            events, delay_ms = EVENTS, DELAY_MS
            start = body.find(b"mock:")
            if start >= 0:
                wanted = body[start + 5 : body.find(b'"', start)].split(b":")
                events, delay_ms = int(wanted[0]), float(wanted[1])
            self._streaming = asyncio.ensure_future(self._stream(events, delay_ms / 1000))
        else:
            self._transport.write(CHAT)

    async def _stream(self, events: int, delay: float) -> None:
        self._transport.write(STREAM_HEAD)
        for _ in range(events):
            self._transport.write(DELTA)
            await asyncio.sleep(delay)
        self._transport.write(STREAM_END)
        self._streaming = None
        if self._buffer:
            self.data_received(b"")


async def _serve() -> None:
    server = await asyncio.get_running_loop().create_server(MockEngine, "127.0.0.1", 0, backlog=4096)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve())
