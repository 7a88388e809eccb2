"""The client's side of one exchange: an HTTP/1.1 response written as wire bytes straight to the transport.

`headers` are ready lines, each with its CRLF, without the lines that are written here: `content-length`,
`transfer-encoding`, `connection` and `x-request-id`. All writing is synchronous; when `paused` turns true the
client reads more slowly than it is written to, and the writer waits in `drain` or is told by `follow`.
Once the client has gone every call is ignored: the exchange's task is being cancelled.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio

    from fastllm_proxy.body import RequestBody
    from fastllm_proxy.connection import ClientConnection
    from fastllm_proxy.heads import Request
    from fastllm_proxy.outflow import Outflow

JOINED_BYTES: Final = 64 * 1024
"""Up to here copying head and body into one piece is cheaper than a second write."""

_STATUS_LINES: Final = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n".encode() for s in HTTPStatus}
READY_SIZES: Final = 2048
SIZE_LINES: Final = tuple(b"%x\r\n" % size for size in range(READY_SIZES))
"""Of small chunks, as streams consist of: making one for each event costs more than looking it up."""

_WITHOUT_BODY: Final = frozenset((204, 304))
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


def status_line(status: int) -> bytes:
    return _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status


class Downstream:
    __slots__ = (
        "_bodyless",
        "_connection",
        "_old_client",
        "_request_body",
        "_until_close",
        "chunked",
        "ended",
        "keep_alive",
        "request_id",
        "started",
        "status",
    )

    def __init__(
        self,
        connection: ClientConnection,
        request_body: RequestBody | None,
        request_id: str,
        request: Request | None,
    ) -> None:
        """`request` and its body are `None` if there was no request to speak of."""
        self._connection = connection
        self._request_body = request_body
        self.request_id = request_id
        if request is None:
            self.keep_alive = self._bodyless = self._old_client = False
        else:
            self.keep_alive = request.keep_alive
            self._bodyless = request.method == "HEAD"
            self._old_client = request.old  # it speaks HTTP/1.0, which knows no chunks
        self.chunked = False
        self._until_close = False
        self.started = False
        self.ended = False
        self.status = 0

    @property
    def connected(self) -> bool:
        """Whether the client is still there, as far as is known."""
        return self._connection.transport is not None

    @property
    def outflow(self) -> Outflow:
        """Whose `transport` it is."""
        return self._connection

    @property
    def transport(self) -> asyncio.Transport | None:
        """What is written to; `None` once the client has gone."""
        return self._connection.transport

    @property
    def paused(self) -> bool:
        """Whether the client has more to take than its kernel and ours hold."""
        return self._connection.writing_paused

    def follow(self, on_pause: Callable[[], None] | None, on_resume: Callable[[], None] | None) -> None:
        """Called whenever `paused` turns true, and whenever it turns false; unset when the exchange ends."""
        self._connection.on_pause = on_pause
        self._connection.on_resume = on_resume

    async def drain(self) -> None:
        """Waits while `paused`. Raises `ConnectionError` when the client has gone."""
        await self._connection.drained()

    def send_whole(self, status: int, headers: bytes, body: bytes | bytearray | memoryview) -> None:
        """The whole response at once: head and body leave in one write unless the body is large."""
        size = len(body)
        if self._bodyless or status in _WITHOUT_BODY:
            body = b""
        head = self._head(status, headers, size)
        self.ended = True
        transport = self._connection.transport
        if transport is None:
            return
        if len(body) <= JOINED_BYTES:
            transport.write(b"".join((head, body)))
        else:
            transport.writelines((head, body))

    def start(self, status: int, headers: bytes, length: int | None, first: bytes = b"") -> None:
        """The head, together with the first piece. `length` `None` means that it is not known: the body is
        chunked, or for an HTTP/1.0 client it lasts until the connection closes."""
        head = self._head(status, headers, length)
        transport = self._connection.transport
        if transport is None:
            return
        if not first or self._bodyless:
            transport.write(head)
        elif self.chunked:
            transport.write(b"%b%x\r\n%b\r\n" % (head, len(first), first))
        else:
            transport.write(head + first)

    def write(self, piece: bytes) -> None:
        """A piece of the body, after `start`."""
        transport = self._connection.transport
        if transport is None or not piece or self._bodyless:
            return
        if not self.chunked:
            transport.write(piece)
            return
        size = len(piece)
        line = SIZE_LINES[size] if size < READY_SIZES else b"%x\r\n" % size
        if size <= JOINED_BYTES:
            transport.write(b"".join((line, piece, b"\r\n")))
        else:
            transport.writelines((line, piece, b"\r\n"))

    def end(self) -> None:
        """The end of a body begun with `start`."""
        if self.ended:
            return
        self.ended = True
        transport = self._connection.transport
        if self.chunked and transport is not None:
            transport.write(b"0\r\n\r\n")

    def cut(self) -> None:
        """Ends a started response so that nobody takes it for complete: the last chunk, or the rest of the
        announced length, never comes. What was written still leaves, unless closing is all that tells a
        complete body from a cut one: then the connection is reset."""
        self.keep_alive = False
        self.ended = True
        transport = self._connection.transport
        if transport is None:
            return
        if self._until_close:
            raw = transport.get_extra_info("socket")
            if raw is not None:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            transport.abort()
        else:
            self._connection.close_after_writing()

    def abort(self) -> None:
        """Closes the connection at once: what was written and not taken is lost."""
        transport = self._connection.transport
        if transport is not None:
            transport.abort()

    def _head(self, status: int, headers: bytes, length: int | None) -> bytes:
        assert not self.started, "a response was started twice"
        self.started = True
        self.status = status
        framing = b""
        if status in _WITHOUT_BODY:
            self._bodyless = True
        elif length is not None:
            framing = b"content-length: %d\r\n" % length
        elif self._old_client:
            self._until_close = True
            self.keep_alive = False
        else:
            framing = b"transfer-encoding: chunked\r\n"
            self.chunked = not self._bodyless
        if self.keep_alive:
            body = self._request_body
            self.keep_alive = (
                body is not None and body.leaves_connection_usable() and not self._connection.ending
            )
        if not self.keep_alive:
            framing += b"connection: close\r\n"
        elif self._old_client:
            framing += b"connection: keep-alive\r\n"
        return b"%b%b%bx-request-id: %b\r\n\r\n" % (
            status_line(status),
            headers,
            framing,
            self.request_id.encode(),
        )
