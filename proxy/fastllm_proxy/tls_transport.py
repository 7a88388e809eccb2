"""TLS between a connection and its socket: a transport towards the one, a protocol towards the other.

uvloop has such a layer. It loses what has come but was not yet taken when the peer closes without waiting
for an answer, as servers do; it tells a truncated body from a finished one only by what it does not call; and
it holds up to half a megabyte for each slow reader. Here a pause stops the socket itself, so that an end is
seen only after all that came before it; at most one read of ciphertext is held; and an end without
`close_notify` is an error, since anybody on the way could have made it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable
from typing import Any, cast

Body = bytes | bytearray | memoryview

RECORD_BYTES = 65_536
"""How much of a request is encrypted at a time, so that a large one is not there twice."""


class TlsTransport(asyncio.BufferedProtocol, asyncio.Transport):
    """The client's side. `ready` is done once the handshake is; it raises `OSError`,
    mostly `ssl.SSLError`.

    State: `_open` once the handshake is done; `_incoming` and `_outgoing` hold ciphertext on its way through
    `_tls`; `_backlog` is what has not been encrypted, because the socket is `_full` (`_told_full`: and the
    protocol knows) or the peer must speak first; `_paused` says that the protocol wants nothing, `_stopped`
    that the socket is not read; `_error` is why it was closed.
    """

    __slots__ = (
        "_backlog",
        "_buffer",
        "_closed",
        "_error",
        "_full",
        "_incoming",
        "_loop",
        "_open",
        "_outgoing",
        "_paused",
        "_protocol",
        "_raw",
        "_stopped",
        "_tls",
        "_told_full",
        "ready",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        context: ssl.SSLContext,
        server_name: str,
        protocol: asyncio.BufferedProtocol,
    ) -> None:
        """`protocol` takes what was decrypted; its buffer holds the ciphertext before. Raises `ValueError`
        for what cannot be a server's name."""
        self._loop = loop
        self._protocol = protocol
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_name)
        self._buffer = cast(memoryview, protocol.get_buffer(-1))
        self._backlog: list[memoryview] = []
        self._error: Exception | None = None
        self._closed = False
        self._open = False
        self._full = False
        self._told_full = False
        self._paused = False
        self._stopped = False
        self.ready: asyncio.Future[None] = loop.create_future()

    # The transport.

    def write(self, data: Body) -> None:
        self._backlog.append(memoryview(data))
        self._encrypt()

    def writelines(self, list_of_data: Iterable[Body]) -> None:
        self._backlog += map(memoryview, list_of_data)
        self._encrypt()

    def get_write_buffer_size(self) -> int:
        waiting = 0 if self._closed else self._raw.get_write_buffer_size()
        return sum(map(len, self._backlog)) + waiting

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._raw.set_write_buffer_limits(high, low)

    def pause_reading(self) -> None:
        self._paused = True
        if not self._stopped and not self._closed:
            self._stopped = True
            self._raw.pause_reading()

    def resume_reading(self) -> None:
        self._paused = False
        self._loop.call_soon(self._go_on)

    def abort(self) -> None:
        if not self._closed:
            self._closed = True
            self._raw.abort()

    def is_closing(self) -> bool:
        return self._closed

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._tls if name == "ssl_object" else self._raw.get_extra_info(name, default)

    # The protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast(asyncio.Transport, transport)
        self._shake_hands()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._incoming.write(self._buffer[:nbytes])
        if not self._open:
            self._shake_hands()
        if self._open and not self._closed:
            self._decrypt()

    def eof_received(self) -> None:
        self._fail(ssl.SSLEOFError("closed without close_notify"))

    def pause_writing(self) -> None:
        self._full = True
        if not self._told_full:
            self._told_full = True
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._full = False
        self._encrypt()
        if self._told_full and not self._full:
            self._told_full = False
            self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        self._backlog.clear()
        error = self._error or exc
        if self._open:
            self._protocol.connection_lost(error)
        elif not self.ready.done():  # it is when whoever waited has given up
            self.ready.set_exception(error or ssl.SSLEOFError("closed during the handshake"))

    # Inside.

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._send_outgoing()
        except ssl.SSLError as error:
            self._send_outgoing()  # the alert says what was wrong
            self._fail(error)
        else:
            self._send_outgoing()
            if self.ready.cancelled():
                return
            self._open = True
            self._protocol.connection_made(self)
            self.ready.set_result(None)

    def _send_outgoing(self) -> None:
        if self._outgoing.pending:
            self._raw.write(self._outgoing.read())

    def _encrypt(self) -> None:
        """Encrypts as much of the backlog as the socket wants at present."""
        backlog = self._backlog
        while backlog and not self._full and not self._closed:
            piece = backlog[0]
            try:
                # An empty write would be an error.
                written = self._tls.write(piece[:RECORD_BYTES]) if piece else 0
            except ssl.SSLWantReadError:
                break
            except ssl.SSLError as error:
                self._fail(error)
                return
            if written == len(piece):
                del backlog[0]
            else:
                backlog[0] = piece[written:]
            self._send_outgoing()

    def _decrypt(self) -> None:
        """Hands on what has come, until all is taken or the protocol pauses."""
        tls, buffer = self._tls, self._buffer
        size = len(buffer)
        more = True
        while more and not self._paused and not self._closed:
            filled = 0
            ended = False
            error: ssl.SSLError | None = None
            try:
                # Asking in vain costs an exception, so it is asked only while there is something.
                while more and filled < size:
                    got = tls.read(size - filled, buffer[filled:] if filled else buffer)
                    ended = not got
                    filled += cast(int, got)
                    more = not ended and bool(self._incoming.pending or tls.pending())
            except ssl.SSLWantReadError:
                more = False
            except ssl.SSLError as caught:
                error = caught
            if filled:
                self._protocol.buffer_updated(filled)
            if error is not None:
                self._fail(error)
            elif ended and not self._closed:
                self._protocol.eof_received()
                self.abort()
        if not self._closed:
            self._send_outgoing()  # TLS itself may have had to answer
            if self._backlog:
                self._encrypt()

    def _go_on(self) -> None:
        """What was left when the protocol paused comes first; then the socket is read again."""
        if self._wants_nothing():
            return
        self._decrypt()
        if self._stopped and not self._wants_nothing():
            self._stopped = False
            self._raw.resume_reading()

    def _wants_nothing(self) -> bool:
        return self._paused or self._closed

    def _fail(self, error: Exception) -> None:
        if self._closed:
            return
        self._error = error
        self._closed = True
        if self._open:
            self._raw.abort()
        else:
            self._raw.close()  # after the alert
