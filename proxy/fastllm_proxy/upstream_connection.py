"""One connection to a backend: bytes and waiting. What the bytes mean is decided in `response_parser`.

A request's life on it: `send`, `head`, then `read` until `b""` or one `pipe`, then `release` or `abort`.
One holder at a time; after `release` or `abort` the holder forgets the object, which may already
serve somebody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal, Protocol, cast

from fastllm_proxy.errors import BadResponse, ConnectionReset, UpstreamError, UpstreamTimeout
from fastllm_proxy.response_parser import ResponseHead, ResponseParser
from fastllm_proxy.timers import Timer, TimerWheel

JOINED_BYTES = 65_536
"""Up to here head and body are copied into one write; beyond, the body is handed over as it is."""

UNREAD_BYTES = 262_144
"""Reading pauses when this much has come that nobody has asked for."""

Body = bytes | bytearray | memoryview
Phase = Literal["connect", "head", "first_byte", "idle"]


class Owner(Protocol):
    """What a connection tells the pool that it belongs to."""

    def returned(self, connection: UpstreamConnection) -> bool:
        """May be used again; says whether the pool keeps it."""

    def lost(self, connection: UpstreamConnection) -> None:
        """Is closed, or about to be; called once or more."""


class UpstreamConnection(asyncio.Protocol):
    """State, in the order of a request's life:

    `_held`     borrowed from the pool; bytes that come while it is not are nobody's
    `_waiter`   the future that `head` or `read` awaits, or the one that `pipe` gave out
    `_reading`  the head has been handed out: only body bytes wake a waiter
    `_sink`     where `pipe` sends what comes
    `_timer`    the timeout of whoever waits; `_progress` is when a byte last came for `pipe`
    `_failure`  why this response cannot be completed; raised after what came before it
    """

    __slots__ = (
        "_failure",
        "_held",
        "_limit",
        "_loop",
        "_owner",
        "_parser",
        "_paused",
        "_phase",
        "_progress",
        "_reading",
        "_sink",
        "_timer",
        "_timers",
        "_transport",
        "_unread",
        "_waiter",
        "idle_since",
        "reused",
    )

    def __init__(self, owner: Owner, loop: asyncio.AbstractEventLoop, timers: TimerWheel) -> None:
        self._owner = owner
        self._loop = loop
        self._timers = timers
        self._parser = ResponseParser()
        self._transport: asyncio.Transport | None = None
        self._held = True
        self._paused = False
        self._phase: Phase = "head"
        self._limit = 0.0
        self._progress = 0.0
        self._reading = False
        self._unread = 0
        self._waiter: asyncio.Future[None] | None = None
        self._sink: Callable[[bytes], None] | None = None
        self._timer: Timer | None = None
        self._failure: UpstreamError | None = None
        self.idle_since = 0.0
        self.reused = False

    # What the holder calls.

    def send(self, head: bytes, *body: Body) -> None:
        """Sends a request as one write: `head` with its blank line, then the parts of its body.

        A connection that has gone meanwhile shows in `head`.
        """
        self._parser.begin(bodyless=head.startswith(b"HEAD "))
        self._reading = False
        self._unread = 0
        transport = self._transport
        if transport is None or transport.is_closing():
            self._failure = ConnectionReset("closed while idle")
            return
        size = len(head)
        for part in body:
            size += len(part)
        if size <= JOINED_BYTES:
            transport.write(b"".join((head, *body)))
        else:
            transport.writelines((head, *body))

    async def head(self, timeout_seconds: float, phase: Phase = "head") -> ResponseHead:
        """Waits for the response's head. Raises `UpstreamError`; a timeout carries `phase`."""
        parser = self._parser
        if parser.head is None and self._failure is None:
            self._phase = phase
            await self._wait(timeout_seconds)
        self._reading = True
        if parser.head is None:
            raise self._failure or ConnectionReset("no response", received=parser.received)
        return parser.head

    async def read(self, timeout_seconds: float) -> bytes:
        """The body bytes that have come since the last call, waiting for some; `b""` at the end.

        Raises `UpstreamError` once what had come before the failure has been read.
        """
        parser = self._parser
        while not parser.pieces:
            if self._failure is not None:
                raise self._failure
            if parser.complete:
                return b""
            await self._wait(timeout_seconds)
        self._unread = 0
        if self._paused:
            self.resume()
        return parser.take()

    def pipe(self, sink: Callable[[bytes], None], idle_seconds: float) -> asyncio.Future[None]:
        """From now on every piece of the body goes to `sink` as it comes, and first what has come already.

        The future is done at the end of the body; it raises `UpstreamError`, or what `sink` raised. While
        the holder has paused, silence is no timeout.
        """
        self._sink = sink
        waiter = self._wait(idle_seconds)
        self._progress = self._timers.now
        if self._paused:
            self.resume()
        self._deliver()
        if self._failure is not None:
            self._settle(self._failure)
        elif self._parser.complete:
            self._settle(None)
        return waiter

    def pause(self) -> None:
        """Reads no more until `resume`, so that the backend is held back. `read` and `pipe` resume it."""
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            self._progress = self._timers.now
            if self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()

    def release(self) -> None:
        """Gives the connection back: kept if it can carry another request, else closed at once."""
        if not self._held:
            return
        transport = self._transport
        if (
            transport is not None
            and self._parser.reusable
            and not transport.is_closing()
            # The answer came before the whole request had left: its rest would be read as the next request.
            and not transport.get_write_buffer_size()
        ):
            self._let_go()
            if self._paused:
                self.resume()
            if self._owner.returned(self):
                return
            self.drop()
        else:
            self.abort()

    def abort(self) -> None:
        """Closes at once, so that the engine stops working on it. Whoever waits gets `ConnectionReset`."""
        if self._held:
            self._fail(ConnectionReset("given up", received=self._parser.received))
            self._let_go()

    # What the pool calls.

    @property
    def usable(self) -> bool:
        """Whether it was still open when the event loop last looked."""
        transport = self._transport
        return transport is not None and not transport.is_closing()

    def borrow(self) -> None:
        """Begins another hold of an idle connection."""
        self._held = True
        self.reused = True

    def drop(self) -> None:
        """Closes an idle connection."""
        if self._transport is not None:
            self._transport.abort()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        parser = self._parser
        try:
            parser.feed(data)
        except BadResponse as error:
            self._deliver()
            self._fail(error)
            return
        if self._sink is not None:
            self._deliver()
            if parser.complete:
                self._settle(None)
        elif not self._held:
            self._owner.lost(self)
            self.drop()
        elif parser.complete or parser.pieces or (parser.head is not None and not self._reading):
            self._settle(None)
            self._unread += len(data)
            if self._unread > UNREAD_BYTES:
                self.pause()

    def eof_received(self) -> None:
        # A half-closed backend will send nothing more; what it has not yet read of the request is moot.
        self._ended(None)
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended(exc)
        self._transport = None
        self._parser.close()

    def _ended(self, error: Exception | None) -> None:
        self._owner.lost(self)
        if not self._held or self._failure is not None or self._parser.complete:
            return
        if error is not None:
            self._fail(ConnectionReset(f"connection lost: {error}", received=self._parser.received))
            return
        try:
            self._parser.end_of_stream()
        except ConnectionReset as early:
            self._fail(early)
        else:
            self._settle(None)

    # Waiting.

    def _wait(self, seconds: float) -> asyncio.Future[None]:
        waiter = self._waiter = self._loop.create_future()
        self._limit = seconds
        self._timer = self._timers.after(seconds, self._expired)
        return waiter

    def _settle(self, error: Exception | None) -> None:
        """Wakes whoever waits. Only `pipe` hands the error over; `head` and `read` find it in `_failure`."""
        waiter = self._waiter
        if waiter is None:
            return
        self._waiter = None
        if self._timer is not None:
            self._timer.cancel()
        if waiter.done():  # cancelled
            return
        if error is None or self._sink is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)
            waiter.exception()  # marks it as seen: a holder that aborts is not going to look

    def _deliver(self) -> None:
        if self._sink is not None and self._parser.pieces:
            self._progress = self._timers.now
            try:
                self._sink(self._parser.take())
            except Exception as error:  # noqa: BLE001 - raised by whoever awaits the pipe
                self._settle(error)
                self._fail(ConnectionReset("given up", received=self._parser.received))

    def _fail(self, error: UpstreamError) -> None:
        if self._failure is None:
            self._failure = error
        self._settle(error)
        if self._transport is not None:
            self._transport.abort()

    def _let_go(self) -> None:
        self._held = False
        self._sink = None
        self._waiter = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expired(self) -> None:
        if self._waiter is None or self._waiter.done():
            return
        if self._sink is not None:
            left = self._limit if self._paused else self._progress + self._limit - self._timers.now
            if left > 0:
                self._timer = self._timers.after(left, self._expired)
                return
        phase = self._phase
        if self._parser.head is not None:
            phase = "idle" if self._parser.body_begun else "first_byte"
        self._fail(UpstreamTimeout(phase, self._limit))
