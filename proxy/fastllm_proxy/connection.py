"""One client's connection: bytes and waiting. What the bytes mean is decided in `request_parser`.

It serves its requests one after another in the one task that it has, and repeats nothing of what is no
request.

State and who changes it:
    _parser        the requests that have arrived and are not served yet, and what the client may still send
    _serving       a request is being served
    _waiter        what the task awaits: the next request, or if `_reading` is set more of that one's body
    _last          no further request is waited for; one that is under way is still read and served
    _linger        the last answer is given; what still comes is thrown away until the client closes
    held_back      reading pauses, for enough has come that nobody has taken yet
    _head_timer    runs while a head is incomplete, `_timed` is that head
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, cast

from fastllm_proxy import refusals
from fastllm_proxy.errors import Refused
from fastllm_proxy.heads import PIPELINED_REQUESTS, ConnectionLimits, Request
from fastllm_proxy.linger import Linger
from fastllm_proxy.outflow import Outflow
from fastllm_proxy.request_parser import RequestParser
from fastllm_proxy.tcp import PeerWatch

if TYPE_CHECKING:
    from fastllm_proxy.accept import ProxyServer
    from fastllm_proxy.client_headers import ClientHeaders
    from fastllm_proxy.timers import Timer

UNREAD_BYTES: Final = 128 * 1024
"""Reading pauses when more of the requests' bodies has come than this that nobody has taken."""

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class ClientConnection(Outflow, asyncio.BufferedProtocol):
    """`known_headers` are those of the last request; `accept` keeps them here."""

    __slots__ = (
        "_buffer",
        "_head_timer",
        "_idle_since",
        "_idle_timer",
        "_last",
        "_limits",
        "_linger",
        "_loop",
        "_parser",
        "_reading",
        "_server",
        "_serving",
        "_task",
        "_timed",
        "_view",
        "_waiter",
        "_wanted",
        "held_back",
        "known_headers",
    )

    def __init__(
        self,
        server: ProxyServer,
        *,
        loop: asyncio.AbstractEventLoop,
        limits: ConnectionLimits,
        buffer: bytearray,
        view: memoryview,
    ) -> None:
        """`buffer` is what sockets are read into, `view` a view of it. Every read is taken out before the
        next one begins, so all connections of a process share one."""
        super().__init__()
        self._server = server
        self._loop = loop
        self._limits = limits
        self._buffer = buffer
        self._view = view
        self._parser = RequestParser(limits)
        self._task: asyncio.Task[None] | None = None
        self._serving = False
        self._waiter: asyncio.Future[None] | None = None
        self._reading: Request | None = None
        self._wanted = 0
        self.held_back: PeerWatch | None = None
        self._head_timer: Timer | None = None
        self._timed = self._parser.partial
        self._idle_since = 0.0
        self._idle_timer: asyncio.TimerHandle | None = None
        self._last = False
        self._linger: Linger | None = None
        self.known_headers: ClientHeaders | None = None

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        # Hardly anything waits here: the kernel has enough for a client that reads. Events of streams are
        # smaller, and uvloop writes those at the end of its turn, which costs a tenth less than one by one.
        self.transport.set_write_buffer_limits(high=1024)
        self._server.connected(self)
        self._task = self._loop.create_task(self._serve())
        self._idle_since = self._loop.time()
        self._idle_timer = self._loop.call_later(self._limits.keepalive_seconds, self._look_for_idleness)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        parser = self._parser
        if parser.ended:
            if self._linger is not None:
                self._linger.discarded += nbytes
            return
        ended = parser.feed(self._buffer, self._view, nbytes)
        if parser.partial or self._head_timer is not None:
            self._time_head()
        if ended:
            self._refuse_at_once()
        self._wake()
        if parser.unread > UNREAD_BYTES or parser.rest is not None:
            self._hold_back()

    def eof_received(self) -> None:
        """A half-closed client counts as gone: whatever is being done for it is cancelled at once."""
        if self.transport is not None and (self._serving or self._parser.arrived):
            self.transport.abort()

    def connection_lost(self, exc: BaseException | None) -> None:  # noqa: ARG002 - asyncio's signature
        self.transport = None
        self._parser.close()
        self._stop_head_timer()
        self._stop_watch()
        if self._linger is not None:
            self._linger.cancel()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self.on_pause = self.on_resume = None
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._server.disconnected(self)

    # The turn of requests

    async def _serve(self) -> None:
        """Serves what arrives until the connection ends. Runs in the connection's one task, which is
        cancelled when the client goes away."""
        parser = self._parser
        arrived = parser.arrived
        while True:
            while not arrived:
                if parser.ended or self._last:
                    self.close_after_writing()
                    return
                self._waiter = waiter = self._loop.create_future()
                await waiter
            if self.writing_paused:
                await self.drained()  # one that asks on and does not read would fill the memory with answers
                continue
            request = arrived.popleft()
            if isinstance(request, Refused):
                self._server.refuse(self, request)
                break
            self._serving = True
            if parser.rest is not None and len(arrived) <= PIPELINED_REQUESTS // 2:
                parser.go_on()
                self._time_head()
            if self.held_back is not None:
                self._read_on()
            try:
                usable = await self._server.serve(self, request)
            finally:
                self._served(request)
            # The rest of a body that nobody wanted is read away, if the next request is to follow.
            if not usable or not (request.complete or await self._discard(request)):
                break
            self._idle_since = self._loop.time()
        self.close_after_writing()

    def _served(self, request: Request) -> None:
        self._serving = False
        self._reading = None
        self.on_pause = self.on_resume = None
        if self._parser.offered is request:
            self._parser.offered = None
        if request.unread:
            self.take(request)

    async def _discard(self, request: Request) -> bool:
        late = refusals.request_timeout("")
        timer = self._server.timers.after(self._limits.discard_seconds, lambda: self.drop(request, late))
        try:
            while not request.complete and request.failure is None:
                await self.arrival(request, 1)
                self.take(request)
        finally:
            timer.cancel()
            self._reading = None
        return request.failure is None

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is None:
            return
        reading = self._reading
        if reading is None:
            if not self._parser.arrived and not self._parser.ended:
                return
        elif not reading.complete and reading.unread < self._wanted and reading.failure is None:
            return
        self._waiter = None
        if not waiter.done():
            waiter.set_result(None)

    def _refuse_at_once(self) -> None:
        """Answers what cannot be served and has nothing before it. Not from the task: the end of the client's
        side may be on its way already."""
        arrived = self._parser.arrived
        if not self._serving and arrived and isinstance(arrived[0], Refused):
            self._server.refuse(self, arrived[0])
            arrived.clear()
            self.close_after_writing()

    # What a body's reader calls

    def arrival(self, request: Request, wanted: int) -> asyncio.Future[None]:
        """Done when `wanted` bytes of the body are unread, or no more will come, one way or the other."""
        self._reading = request
        self._wanted = wanted
        self._waiter = waiter = self._loop.create_future()
        self._wake()
        return waiter

    def take(self, request: Request) -> bytes:
        """The body bytes that have come since the last call, as one piece."""
        pieces = request.pieces
        piece = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._parser.unread -= request.unread
        request.unread = 0
        if self.held_back is not None:
            self._read_on()
        return piece

    def drop(self, request: Request, why: Refused) -> None:
        """Gives up on a body that is not complete: whoever reads it is told."""
        if not request.complete and request.failure is None:
            request.failure = why
            self._wake()

    def write_continue(self) -> None:
        if self.transport is not None:
            self.transport.write(_CONTINUE)

    # What is sent

    @property
    def ending(self) -> bool:
        """Whether the answer that is given now is the connection's last."""
        if self._server.draining:
            return True
        parser = self._parser
        return (parser.ended or self._last) and not parser.arrived

    # How fast it has to be

    def _hold_back(self) -> None:
        if self.held_back is None and self.transport is not None and self._linger is None:
            self.held_back = PeerWatch(self.transport, self._server.timers)
            self.transport.pause_reading()

    def _read_on(self) -> None:
        parser = self._parser
        if parser.unread <= UNREAD_BYTES and parser.rest is None and self.transport is not None:
            self._stop_watch()
            self.transport.resume_reading()

    def _stop_watch(self) -> None:
        if self.held_back is not None:
            self.held_back.cancel()
            self.held_back = None

    def _time_head(self) -> None:
        partial = self._parser.partial
        if partial and partial is self._timed and self._head_timer is not None:
            return
        self._stop_head_timer()
        if partial:
            self._timed = partial
            self._head_timer = self._server.timers.after(self._limits.head_seconds, self._head_too_slow)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_too_slow(self) -> None:
        self._head_timer = None
        if self.held_back is not None:  # it is we who do not read it
            self._time_head()
            return
        self._parser.refuse(refusals.request_timeout("the request's headers came too slowly"))
        self._refuse_at_once()
        self._wake()

    def _look_for_idleness(self) -> None:
        now = self._loop.time()
        due = now + self._limits.keepalive_seconds
        if self.idle:
            due = self._idle_since + self._limits.keepalive_seconds
            if due <= now and self.transport is not None:
                self.transport.close()
                return
        self._idle_timer = self._loop.call_at(due, self._look_for_idleness)

    @property
    def idle(self) -> bool:
        """Whether no request is being served, waits, or has begun."""
        return not (self._serving or self._parser.arrived or self._parser.open or self._parser.partial)

    # The end

    def close(self) -> None:
        """Ends an idle connection now, a busy one after its answer, one that has begun a request after
        that."""
        self._last = True
        if self.idle and self._linger is None and self.transport is not None:
            self.transport.close()

    def close_after_writing(self) -> None:
        """Lets what was written leave and says that nothing follows, but closes only when the client has, or
        after a while: closing over bytes that it is still sending would reset the connection and take the
        answer with it."""
        transport = self.transport
        if transport is None or transport.is_closing() or self._linger is not None:
            return
        self._parser.ended = True
        self._stop_head_timer()
        if not transport.can_write_eof():  # TLS
            transport.close()
            return
        transport.write_eof()
        if self.held_back is not None:
            self._stop_watch()
            transport.resume_reading()
        self._linger = Linger(transport, self._server.timers, self._limits)
