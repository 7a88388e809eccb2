"""Many clients that do not read, and an engine that pours out long answers without holding any of them.

Sockets are made small on purpose: what kernels keep on the way is not the gateway's.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import zlib
from collections.abc import AsyncIterator
from typing import Literal, cast

from tests.proxy.rig import chat

Framing = Literal["length", "chunked", "sse"]

MSS = 1460  # as on a real network; loopback's of 64 KiB makes send buffers of megabytes
PIECE_BYTES = 16_384
_LINE = b"data: " + bytes(range(48, 122)) * 230
PIECE = _LINE[: PIECE_BYTES - 2] + b"\n\n"
PIECES = 640
TOTAL_BYTES = PIECES * PIECE_BYTES
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


class Pouring(asyncio.Protocol):
    """One connection of the engine. The request's header `x-framing` says what it answers with."""

    def __init__(self, engine: PouringEngine) -> None:
        self._engine = engine
        self._arrived = b""
        self._framing: Framing = "length"
        self._left = 0
        self.paused = False
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=PIECE_BYTES)
        self._engine.connections.append(self)

    def data_received(self, data: bytes) -> None:
        self._arrived += data
        head, blank, body = self._arrived.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if blank and length is not None and len(body) >= int(length[1]):
            self._arrived = b""
            self._answer(cast(Framing, head.partition(b"x-framing: ")[2].partition(b"\r\n")[0].decode()))

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        self._pour()

    def connection_lost(self, exc: Exception | None) -> None:
        self.paused = True
        self.transport = None

    def _answer(self, framing: Framing) -> None:
        assert self.transport is not None
        self._framing = framing
        kind = b"text/event-stream" if framing == "sse" else b"application/json"
        size = b"content-length: %d" % TOTAL_BYTES if framing == "length" else b"transfer-encoding: chunked"
        self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n%b\r\n\r\n" % (kind, size))
        self._left = PIECES
        self._pour()

    def _pour(self) -> None:
        while self._left and not self.paused and self.transport is not None:
            self._left -= 1
            self._engine.poured += 1
            if self._framing == "length":
                self.transport.write(PIECE)
            else:
                self.transport.write(b"%x\r\n%b\r\n" % (PIECE_BYTES, PIECE))
                if not self._left:
                    self.transport.write(b"0\r\n\r\n")


class PouringEngine:
    """`poured` counts the pieces that all connections have written."""

    def __init__(self) -> None:
        self.connections: list[Pouring] = []
        self.poured = 0
        self.url = ""

    @classmethod
    @contextlib.asynccontextmanager
    async def start(cls) -> AsyncIterator[PouringEngine]:
        engine = cls()
        listener = socket.socket()
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, MSS)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)
        listener.bind(("127.0.0.1", 0))
        server = await asyncio.get_running_loop().create_server(
            lambda: Pouring(engine), sock=listener, backlog=1024
        )
        engine.url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        try:
            yield engine
        finally:
            server.close()
            for connection in engine.connections:
                if connection.transport is not None:
                    connection.transport.abort()
            await asyncio.sleep(0)

    async def stopped(self) -> None:
        """Waits until nothing has been written for a while: all writers are held back."""
        before = -1
        while self.poured != before:
            before = self.poured
            await asyncio.sleep(0.2)


class Reader(asyncio.Protocol):
    """A client that asks and does not read until `go`. `done` gives the number and the checksum of the body's
    bytes."""

    def __init__(self, key: str, framing: Framing) -> None:
        self._key = key
        self._framing = framing
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._head = False
        self.size = 0
        self.checksum = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def connect(cls, port: int, key: str, framing: Framing) -> Reader:
        loop = asyncio.get_running_loop()
        sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, MSS)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
        await loop.sock_connect(sock, ("127.0.0.1", port))
        _, reader = await loop.create_connection(lambda: cls(key, framing), sock=sock)
        reader.ask()
        return reader

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def ask(self) -> None:
        """Sends the request. Not before: a transport that is being made reads whatever it was told."""
        assert self._transport is not None
        self._transport.pause_reading()
        body = chat(stream=self._framing == "sse")
        self._transport.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nauthorization: Bearer %b\r\nx-framing: %b\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            % (self._key.encode(), self._framing.encode(), len(body), body)
        )

    def go(self) -> None:
        assert self._transport is not None
        self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._head:
            head, blank, rest = bytes(self._received).partition(b"\r\n\r\n")
            if not blank:
                return
            self._head = True
            assert b" 200 OK" in head, head + rest
            self._received = bytearray(rest)
        if self._framing == "length":
            self._count(bytes(self._received))
            self._received.clear()
            if self.size >= TOTAL_BYTES:
                self._finish()
        else:
            self._unchunk()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError("closed before the end"))
            self.done.exception()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _unchunk(self) -> None:
        received = self._received
        while (line := received.find(b"\r\n")) > 0:
            size = int(received[:line], 16)
            if len(received) < line + 2 + size + 2:
                return
            self._count(bytes(received[line + 2 : line + 2 + size]))
            del received[: line + 2 + size + 2]
            if not size:
                self._finish()

    def _count(self, data: bytes) -> None:
        self.size += len(data)
        self.checksum = zlib.crc32(data, self.checksum)

    def _finish(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


def checksum() -> int:
    """Of a whole answer."""
    found = 0
    for _ in range(PIECES):
        found = zlib.crc32(PIECE, found)
    return found
