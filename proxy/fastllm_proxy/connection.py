"""One client's connection: aiohttp's parser and flow control, with our own turn of requests and our own
answers to what is not HTTP.

aiohttp's loop makes a task, a request object and a writer for every request, answers malformed HTTP with
text that repeats the request, and logs it. This one serves a connection's requests one after another in the
one task that the connection has, hands on the bare parsed message, and repeats nothing.

State and who changes it:
    _arrived       parsed requests, or the refusal of one, that are not served yet
    _incoming      the body that the parser is filling
    _head_bytes    size of a head that is not complete yet; `_head_timer` runs meanwhile
    _close         nothing is parsed any more; what has arrived is still served
    _last          no further request is waited for; one that is under way is still read and served
    _discarding    the last answer is given; what still comes is thrown away until the client closes
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from aiohttp import StreamReader
from aiohttp.http import HttpProcessingError, HttpVersion11
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import EMPTY_PAYLOAD
from aiohttp.web_protocol import RequestHandler

from fastllm_proxy import refusals
from fastllm_proxy.errors import Refused
from fastllm_proxy.heads import (
    PIPELINED_REQUESTS,
    READ_BUFFER_BYTES,
    ConnectionLimits,
    new_parser,
    objection,
    parser_limits,
    refusal_of,
    too_large,
)

if TYPE_CHECKING:
    from fastllm_proxy.accept import ProxyServer
    from fastllm_proxy.client_headers import ClientHeaders
    from fastllm_proxy.timers import Timer

Arrival = tuple[RawRequestMessage | Refused, StreamReader]

_END_OF_CHUNKS: Final = b"0\r\n\r\n"
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class ClientConnection(RequestHandler):
    __slots__ = (
        "_arrived",
        "_chunks_end",
        "_discarded",
        "_discarding",
        "_head_bytes",
        "_head_timer",
        "_incoming",
        "_last",
        "_limits",
        "_linger_timer",
        "_linger_until",
        "_server",
        "known_headers",
        "on_pause",
        "on_resume",
    )

    def __init__(
        self, server: ProxyServer, *, loop: asyncio.AbstractEventLoop, limits: ConnectionLimits
    ) -> None:
        super().__init__(
            server,
            loop=loop,
            keepalive_timeout=limits.keepalive_seconds,
            tcp_keepalive=False,  # set on the listening socket, which accepted ones inherit
            access_log=None,  # type: ignore[arg-type]  # aiohttp's own way of switching it off
            read_bufsize=READ_BUFFER_BYTES,
            **parser_limits(limits),
        )
        self._server = server
        self._limits = limits
        self._arrived: deque[Arrival] = deque()
        self._incoming: StreamReader = EMPTY_PAYLOAD
        self._chunks_end = b""
        self._head_bytes = 0
        self._head_timer: Timer | None = None
        self._last = False
        self._discarding = False
        self._discarded = 0
        self._linger_timer: Timer | None = None
        self._linger_until = 0.0
        self.known_headers: ClientHeaders | None = None  # of the last request; `accept` keeps them here
        self.on_pause: Callable[[], None] | None = None
        self.on_resume: Callable[[], None] | None = None

    # What the client sends

    def data_received(self, data: bytes) -> None:
        if self._force_close or self._close or self._upgraded or self._parser is None:
            self._discarded += len(data)
            return
        body_open = not self._incoming.is_eof()
        try:
            messages, self._upgraded, _ = self._parser.feed_data(data)
        except HttpProcessingError as error:
            self._malformed(error)
            return
        if messages:
            self._take(messages, data)
        elif data and not body_open:
            self._head_incomplete(data)
        if self._chunks_end:
            self._chunks_end = (self._chunks_end + data)[-len(_END_OF_CHUNKS) :]

    def eof_received(self) -> None:
        """A half-closed client counts as gone: whatever is being done for it is cancelled at once."""
        if self.transport is not None and (self._request_in_progress or self._arrived):
            self.transport.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._end_head()
        if self._linger_timer is not None:
            self._linger_timer.cancel()
        self.on_pause = self.on_resume = None
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.on_pause is not None:
            self.on_pause()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.on_resume is not None:
            self.on_resume()

    def resume_reading(self, resume_parser: bool = True) -> None:
        # aiohttp calls this for every body that is read; it has something to do only after a pause.
        if self._reading_paused:
            super().resume_reading(resume_parser)

    def _resume_reading_if_drained(self) -> None:
        self.data_received(b"")
        if len(self._arrived) < PIPELINED_REQUESTS:
            self._resume_reading_for_buffer()

    def _take(self, messages: Sequence[tuple[RawRequestMessage, StreamReader]], data: bytes) -> None:
        may_be_large = self._head_bytes + len(data) > self._limits.head_bytes
        self._end_head()
        for message, payload in messages:
            if may_be_large or message.chunked or message.version is not HttpVersion11:
                refused = objection(message, self._limits)
                if refused is not None:
                    self._refuse(refused)
                    return
                if message.chunked:
                    self._chunks_end = data[-len(_END_OF_CHUNKS) :]
            self._arrived.append((message, payload))
            self._incoming = payload
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        if len(self._arrived) >= PIPELINED_REQUESTS and not self._buffer_paused:
            self._pause_reading_for_buffer()

    def _head_incomplete(self, data: bytes) -> None:
        if not self._head_bytes and not data.strip(b"\r\n"):
            return  # the stray line end that old clients send after a body
        self._head_bytes += len(data)
        if self._head_bytes > self._limits.head_bytes:
            self._refuse(too_large(self._limits))
        elif self._head_timer is None:
            self._head_timer = self._server.timers.after(self._limits.head_seconds, self._head_too_slow)

    def _head_too_slow(self) -> None:
        self._refuse(refusals.request_timeout("the request's headers came too slowly"))

    def _end_head(self) -> None:
        self._head_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _malformed(self, error: HttpProcessingError) -> None:
        refused = refusal_of(error, self._limits)
        if self._incoming.is_eof():
            self._refuse(refused)
        else:  # in the middle of a body: whoever reads it is told, and answers
            self._close = True
            self._incoming.set_exception(refused)

    def _refuse(self, refused: Refused) -> None:
        """Answers what cannot be served, in its turn, and parses nothing that follows it."""
        self._close = True
        self._end_head()
        if self._request_in_progress or self._arrived:
            self._arrived.append((refused, EMPTY_PAYLOAD))
            return
        # At once and not from the task: the end of the client's side may be on its way already.
        self._server.refuse(self, refused)
        self.close_after_writing()

    # The turn of requests

    async def start(self) -> None:
        """Serves what arrives until the connection ends. Runs in the connection's one task, which is
        cancelled when the client goes away."""
        while not self._force_close:
            if not self._arrived:
                if self._close or self._last:
                    break
                self._waiter = self._loop.create_future()
                try:
                    await self._waiter
                finally:
                    self._waiter = None
            arrival, payload = self._next()
            if isinstance(arrival, Refused):
                self._server.refuse(self, arrival)
                break
            self._request_in_progress = True
            try:
                usable = await self._server.serve(self, arrival, payload)
            finally:
                self._served()
            # The rest of a body that nobody wanted is read away, if the next request is to follow.
            if not usable or not (payload.is_eof() or await self._discard(payload)):
                break
            if arrival.chunked and not self._renew_parser():
                break
            self._restart_keepalive()
        if not self._force_close:
            self.close_after_writing()

    def _next(self) -> Arrival:
        arrived = self._arrived.popleft()
        if self._parser is not None:
            self._parser.message_consumed()
        if self._buffer_paused and len(self._arrived) <= PIPELINED_REQUESTS // 2:
            self._resume_reading_if_drained()
        return arrived

    def _served(self) -> None:
        self._request_in_progress = False
        self.on_pause = self.on_resume = None
        if self._handler_waiter is not None and not self._handler_waiter.done():
            self._handler_waiter.set_result(None)

    async def _discard(self, payload: StreamReader) -> bool:
        late = refusals.request_timeout("")
        timer = self._server.timers.after(self._limits.discard_seconds, lambda: payload.set_exception(late))
        try:
            while await payload.readany():
                pass
        except Refused:
            return False
        finally:
            timer.cancel()
        return True

    def _renew_parser(self) -> bool:
        """After a chunked body: aiohttp's parser keeps the last trailer field and puts it into the head of
        the next request, so the next one gets a parser that has seen none. False if more than the body had
        come."""
        clean = self._chunks_end == _END_OF_CHUNKS and not self._arrived
        self._chunks_end = b""
        if clean and self._parser is not None:
            self._parser = new_parser(self, self._loop, self._limits)
        return clean

    def _restart_keepalive(self) -> None:
        close_time = self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
        if self._keepalive_handle is None:
            self._keepalive_handle = self._loop.call_at(close_time, self._process_keepalive)

    # What is sent

    @property
    def ending(self) -> bool:
        """Whether the answer that is given now is the connection's last."""
        if self._server.draining or self._upgraded:
            return True
        return (self._close or self._last) and not self._arrived

    def write_continue(self) -> None:
        if self.transport is not None:
            self.transport.write(_CONTINUE)

    async def drained(self) -> None:
        await self._drain_helper()

    # The end

    def close(self) -> None:
        """Ends an idle connection now, a busy one after its answer, one that has begun a request after
        that."""
        self._last = True
        if self._waiter is not None and not self._head_bytes and self.transport is not None:
            self.transport.close()

    def close_after_writing(self) -> None:
        """Lets what was written leave and says that nothing follows, but closes only when the client has, or
        after a while: closing over bytes that it is still sending would reset the connection and take the
        answer with it."""
        transport = self.transport
        if transport is None or transport.is_closing() or self._discarding:
            return
        self._close = self._discarding = True
        if not transport.can_write_eof():  # TLS
            transport.close()
            return
        transport.write_eof()
        self._reading_paused = self._buffer_paused = False
        self._resume_transport_reading()
        self._linger_until = self._loop.time() + self._limits.linger_seconds
        self._linger_on()

    def _linger_on(self) -> None:
        self._discarded = 0
        self._linger_timer = self._server.timers.after(self._limits.linger_pause_seconds, self._linger_over)

    def _linger_over(self) -> None:
        if self._discarded and self._loop.time() < self._linger_until:
            self._linger_on()
        elif self.transport is not None:
            self.transport.abort()
