"""The client-facing edge on a real socket, with a pipeline that a test scripts, and a client that sends raw
bytes."""

from __future__ import annotations

import asyncio
import socket
import struct
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import IO

import msgspec

from fastllm_proxy.accept import EdgeSettings, ProxyServer
from fastllm_proxy.access_log import AccessLog, AccessRecord
from fastllm_proxy.authenticate import authenticate
from fastllm_proxy.body import RequestBody
from fastllm_proxy.exchange import Exchange
from fastllm_proxy.local import Health, LocalRoutes
from fastllm_proxy.metrics import Metrics
from fastllm_proxy.sink import LineSink
from fastllm_proxy.timers import TimerWheel
from fastllm_proxy.view import View, build_view
from fastllm_shared.keys import digest_of
from fastllm_shared.snapshot import (
    FrontendModelEntry,
    KeyEntry,
    PrincipalEntry,
    ProviderModelEntry,
    Snapshot,
    TargetEntry,
)
from tests.fakes.log import CapturedLog

KEY = "sk-everything-0123456789"
NARROW_KEY = "sk-one-model-0123456789"
EXPIRED_KEY = "sk-expired-0123456789"
PROXY_TOKEN = "proxy-token-0123456789"
AUTH = f"Authorization: Bearer {KEY}\r\n".encode()
MAX_BODY = 1024 * 1024
JSON = b"content-type: application/json\r\n"

Handler = Callable[[Exchange, RequestBody], Awaitable[None]]


def example_snapshot() -> Snapshot:
    """Frontend models `assistant` (32768 tokens) and `org/model` (unknown); one key for all, one for
    `org/model`."""
    return Snapshot(
        version=7,
        history="h",
        created_at=1_700_000_000.0,
        keys=(
            KeyEntry(digest_of(KEY), "k1", "p1", KEY[:11]),
            KeyEntry(digest_of(NARROW_KEY), "k2", "p2", NARROW_KEY[:11]),
            KeyEntry(digest_of(EXPIRED_KEY), "k3", "p1", EXPIRED_KEY[:11], expires_at=1_000.0),
        ),
        principals=(
            PrincipalEntry("p1", "team-a", "service_account", all_models=True),
            PrincipalEntry("p2", "team-b", "service_account", models=("org/model",)),
        ),
        provider_models=(ProviderModelEntry("m1", "qwen", context_length=32768),),
        frontend_models=(
            FrontendModelEntry("f1", "assistant", 1_700_000_001.5, targets=(TargetEntry("qwen"),)),
            FrontendModelEntry("f2", "org/model", 1_700_000_002.0, targets=(TargetEntry("gone"),)),
        ),
    )


def example_view() -> View:
    return build_view(example_snapshot(), {})


async def echo(exchange: Exchange, body: RequestBody) -> None:
    """Authenticates, reads the body and says what arrived."""
    exchange.caller = authenticate(exchange.view, exchange.headers, exchange.accepted_unix)
    _say(exchange, await body.read(MAX_BODY))


async def echo_pieces(exchange: Exchange, body: RequestBody) -> None:
    """As `echo`, with the body taken piece by piece."""
    exchange.caller = authenticate(exchange.view, exchange.headers, exchange.accepted_unix)
    async with aclosing(body.pieces(MAX_BODY)) as pieces:
        _say(exchange, b"".join([piece async for piece in pieces]))


def _say(exchange: Exchange, data: bytes | bytearray) -> None:
    seen = {
        "endpoint": exchange.endpoint.path,
        "query": exchange.query,
        "request_id": exchange.request_id,
        "headers": [
            [name.decode("latin-1"), value.decode("latin-1")] for name, value in exchange.headers.raw
        ],
        "body": data.decode("latin-1"),
    }
    exchange.downstream.send_whole(200, JSON, msgspec.json.encode(seen))


class ReplicaStub:
    """A `ReplicaStatus` that a test sets."""

    def __init__(self) -> None:
        self.ready = True
        self.asked_for_detail: list[bool] = []

    def health(self, *, detail: bool) -> Health:
        self.asked_for_detail.append(detail)
        return Health("ok" if self.ready else "not_ready", 7, 1.5, 3, (), {})


class Views:
    """Holds the view of the moment."""

    def __init__(self, current: View | None) -> None:
        self.current = current


class Edge:
    """A running edge. `handler` may be replaced between requests."""

    def __init__(self, settings: EdgeSettings, lines: IO[bytes]) -> None:
        self._lines = lines
        self._sink = LineSink(lines.fileno())
        self.handler: Handler = echo
        self.views = Views(example_view())
        self.status = ReplicaStub()
        self.metrics = Metrics()
        self.captured = CapturedLog()
        self.access_log = AccessLog(self._sink, "json")
        self.timers = TimerWheel(asyncio.get_running_loop(), 0.01)
        self.server = ProxyServer(
            self._handle,
            views=self.views,
            local=LocalRoutes(self.status, self._exposition, (PROXY_TOKEN, "the-older-token")),
            timers=self.timers,
            settings=settings,
            metrics=self.metrics,
            access_log=self.access_log,
            log=self.captured.log,
        )
        self.port = 0

    async def connect(self, *, receive_buffer: int | None = None) -> Client:
        """A client. A small `receive_buffer` makes it one that soon takes no more."""
        raw = socket.socket()
        raw.setblocking(False)
        if receive_buffer is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", self.port))
        return Client(raw)

    async def ask(self, request: bytes) -> Answer:
        """Sends `request` on a connection of its own and reads one answer."""
        async with await self.connect() as client:
            await client.send(request)
            return await client.answer(head_only=request.startswith(b"HEAD"))

    def access_records(self) -> list[AccessRecord]:
        """What was logged of requests so far."""
        self.access_log.flush()
        assert self._sink.flush(5)
        self._lines.seek(0)
        return [msgspec.json.decode(line, type=AccessRecord) for line in self._lines]

    async def _handle(self, exchange: Exchange, body: RequestBody) -> None:
        await self.handler(exchange, body)

    async def _exposition(self) -> bytes:
        return b"fastllm_up 1\n"


@asynccontextmanager
async def running_edge(settings: EdgeSettings | None = None) -> AsyncIterator[Edge]:
    """An edge on a free port, ended with all of its connections. Nothing may have been logged as an error
    unless the test takes it out of `captured`."""
    with tempfile.TemporaryFile() as lines:
        edge = Edge(settings or EdgeSettings(max_inflight=100), lines)
        listener = await asyncio.get_running_loop().create_server(edge.server, "127.0.0.1", 0)
        edge.port = listener.sockets[0].getsockname()[1]
        try:
            yield edge
        finally:
            listener.close()
            await edge.server.finish(0)
            await listener.wait_closed()
            edge.timers.close()
            edge.access_records()


class Answer(msgspec.Struct):
    """One response; header names are lower-cased."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> object:
        return msgspec.json.decode(self.body)

    @property
    def error(self) -> Mapping[str, str | None]:
        """The error object of an OpenAI-shaped body with exactly its four keys."""
        body = msgspec.json.decode(self.body, type=dict[str, dict[str, str | None]])
        assert list(body) == ["error"]
        assert sorted(body["error"]) == ["code", "message", "param", "type"]
        return body["error"]


class Client:
    """A connection that sends what it is told, byte for byte."""

    def __init__(self, raw: socket.socket) -> None:
        self.raw = raw
        self.received = b""
        self._loop = asyncio.get_running_loop()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.raw.close()

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self.raw, data)

    def half_close(self) -> None:
        self.raw.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        self.raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.raw.close()

    async def more(self, seconds: float = 10.0) -> bytes:
        """What comes next; `b""` at the end. Raises `TimeoutError` when nothing comes."""
        piece = await asyncio.wait_for(self._loop.sock_recv(self.raw, 256 * 1024), seconds)
        self.received += piece
        return piece

    async def rest(self) -> bytes:
        """Everything until the server closes."""
        while await self.more():
            pass
        taken, self.received = self.received, b""
        return taken

    async def until(self, mark: bytes) -> bytes:
        """Everything up to and with `mark`."""
        while mark not in self.received:
            assert await self.more(), f"closed before {mark!r}: {self.received[-300:]!r}"
        end = self.received.index(mark) + len(mark)
        taken, self.received = self.received[:end], self.received[end:]
        return taken

    async def exactly(self, size: int) -> bytes:
        while len(self.received) < size:
            assert await self.more(), "closed within a body"
        taken, self.received = self.received[:size], self.received[size:]
        return taken

    async def answer(self, *, head_only: bool = False) -> Answer:
        """The next response, whole."""
        lines = (await self.until(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers: dict[str, str] = {}
        for line in lines[1:-2]:
            name, _, value = line.partition(": ")
            assert name.lower() not in headers, f"{name} twice"
            headers[name.lower()] = value
        status = int(lines[0].split()[1])
        body = b""
        if head_only or status in (204, 304) or status < 200:
            pass
        elif "content-length" in headers:
            body = await self.exactly(int(headers["content-length"]))
        elif headers.get("transfer-encoding") == "chunked":
            body = await self._chunks()
        else:
            body = await self.rest()
        return Answer(status, headers, body)

    async def _chunks(self) -> bytes:
        pieces = []
        while size := int(await self.until(b"\r\n"), 16):
            pieces.append((await self.exactly(size + 2))[:-2])
        assert await self.exactly(2) == b"\r\n"
        return b"".join(pieces)


def post(path: str, body: bytes, headers: bytes = AUTH) -> bytes:
    """A POST with a length."""
    head = f"POST {path} HTTP/1.1\r\nHost: gateway\r\nContent-Length: {len(body)}\r\n".encode()
    return head + headers + b"\r\n" + body


def get(path: str, headers: bytes = AUTH) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: gateway\r\n".encode() + headers + b"\r\n"


async def eventually(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    """Returns as soon as `condition` holds; raises `TimeoutError` if it does not in time."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.002)
