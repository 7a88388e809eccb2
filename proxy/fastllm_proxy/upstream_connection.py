"""One connection to a backend: bytes and waiting. What the bytes mean is decided in `response_parser`.

A request's life on it: `send`, `head`, then `read` until `b""` or one `pipe`, then `release` or `abort`.
One holder at a time; after `release` or `abort` the holder forgets the object, which may already
serve somebody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import Any, Literal, Protocol, cast

from fastllm_proxy.errors import BadResponse, ConnectionReset, UpstreamError, UpstreamTimeout
from fastllm_proxy.response_parser import ResponseHead, ResponseParser
from fastllm_proxy.timers import Timer, TimerWheel

JOINED_BYTES = 65_536
"""Up to here head and body are copied into one write; beyond, the body is handed over as it is."""

UNREAD_BYTES = 262_144
"""Reading pauses when this much has come that nobody has asked for."""

_HEAD_INITIAL = ord("H")  # no other method begins so
EARLY_SECONDS = 1e-6
"""Within this of a deadline it counts as reached: sums of ticks are not exact."""

Body = bytes | bytearray | memoryview
Phase = Literal["connect", "head", "first_byte", "idle"]


class Owner(Protocol):
    """What a connection tells the pool that it belongs to."""

    def returned(self, connection: UpstreamConnection) -> bool:
        """May be used again; says whether the pool keeps it."""

    def lost(self, connection: UpstreamConnection) -> None:
        """Is closed, or about to be; called once or more."""


class UpstreamConnection(asyncio.BufferedProtocol):
    """Buffered, because that bounds what one read brings: else a slow reader's share could be any size.

    State, in the order of a request's life:

    `held`      borrowed from the pool; bytes that come while it is not are nobody's
    `_waiter`   the future that `head` or `read` awaits, or the one that `pipe` gave out
    `_reading`  the head has been handed out: only body bytes wake a waiter
    `sink`      where `pipe` sends what comes; whoever called `pipe` may change it meanwhile
    `_deadline` when whoever waits has waited long enough; `_timer` fires at or before it, at `_timer_due`
    `_failure`  why this response cannot be completed; raised after what came before it
    """

    __slots__ = (
        "_buffer",
        "_deadline",
        "_failure",
        "_limit",
        "_loop",
        "_owner",
        "_parser",
        "_paused",
        "_phase",
        "_reading",
        "_timer",
        "_timer_due",
        "_timers",
        "_transport",
        "_unread",
        "_waiter",
        "held",
        "idle_since",
        "reused",
        "sink",
    )

    def __init__(
        self, owner: Owner, loop: asyncio.AbstractEventLoop, timers: TimerWheel, buffer: memoryview
    ) -> None:
        """`buffer` is what sockets are read into. Every read is taken out before the next one begins, so all
        connections of a process share one."""
        self._owner = owner
        self._buffer = buffer
        self._loop = loop
        self._timers = timers
        self._parser = ResponseParser()
        self._transport: asyncio.Transport | None = None
        self.held = True
        self._paused = False
        self._phase: Phase = "head"
        self._limit = 0.0
        self._deadline = 0.0
        self._reading = False
        self._unread = 0
        self._waiter: asyncio.Future[Any] | None = None
        self.sink: Callable[[bytes], None] | None = None
        self._timer: Timer | None = None
        self._timer_due = inf
        self._failure: UpstreamError | None = None
        self.idle_since = 0.0
        self.reused = False

    # What the holder calls.

    def send(self, head: bytes, body: Body = b"", *more: Body) -> None:
        """Sends a request as one write: `head` with its blank line, then its body, in parts if it is spliced.

        That a connection has gone meanwhile shows in `head`.
        """
        self._parser.begin(bodyless=head[0] == _HEAD_INITIAL)
        self._reading = False
        self._unread = 0
        transport = self._transport
        if transport is None:
            self._failure = ConnectionReset("closed while idle")
            return
        size = len(head) + len(body)
        for part in more:
            size += len(part)
        if size > JOINED_BYTES:
            transport.writelines((head, body, *more))
        elif more:
            transport.write(b"".join((head, body, *more)))
        else:
            transport.write(head + body)

    def head(self, timeout_seconds: float, phase: Phase = "head") -> asyncio.Future[ResponseHead]:
        """Waits for the response's head. Raises `UpstreamError`; a timeout carries `phase`."""
        self._phase = phase
        waiter: asyncio.Future[ResponseHead] = self._wait(timeout_seconds)
        if self._failure is not None or self._parser.head is not None:
            self._settle(self._failure)
        return waiter

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

    def pipe(
        self, sink: Callable[[bytes], None], idle_seconds: float, first_seconds: float = 0.0
    ) -> asyncio.Future[None]:
        """From now on every piece of the body goes to `sink` as it comes, and first what has come already.

        A piece may be `idle_seconds` behind the one before it; the first one `first_seconds`, if longer.
        The future is done at the end of the body; it raises `UpstreamError`, or what `sink` raised. While
        the holder has paused, silence is no timeout.
        """
        self.sink = sink
        waiter: asyncio.Future[None] = self._wait(max(idle_seconds, first_seconds))
        self._limit = idle_seconds
        if self._paused:
            self.resume()
        if self._parser.pieces:
            self._deliver(sink)
        if self._failure is not None or self._parser.complete:
            self._settle(self._failure)
        return waiter

    def pause(self) -> None:
        """Reads no more until `resume`, so that the backend is held back. `read` and `pipe` resume it."""
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            self._deadline = self._timers.next + self._limit
            if self._transport is not None:
                self._transport.resume_reading()

    def release(self) -> None:
        """Gives the connection back: kept if it can carry another request, else closed at once."""
        if not self.held:
            return
        transport = self._transport
        if (
            transport is None
            or not self._parser.reusable
            # The answer came before the whole request had left: its rest would be read as the next request.
            or transport.get_write_buffer_size()
        ):
            self.abort()
            return
        self.held = False
        self.sink = None
        self._waiter = None
        if self._paused:
            self.resume()
        if not self._owner.returned(self):
            self.drop()

    def abort(self) -> None:
        """Closes at once, so that the engine stops working on it. Whoever waits gets `ConnectionReset`."""
        if self.held:
            self._fail(ConnectionReset("given up", received=self._parser.received))
            self.held = False
            self.sink = None

    # What the pool calls; it also sets `held`, `reused` and `idle_since`.

    def drop(self) -> None:
        """Closes at once."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        parser = self._parser
        try:
            parser.feed(bytes(self._buffer[:nbytes]))
        except BadResponse as error:
            if parser.pieces and self.sink is not None:
                self._deliver(self.sink)
            elif parser.pieces and self._reading:
                self._settle(None)  # what came before it is read first
            self._fail(error)
            return
        if self.sink is not None:
            if parser.pieces:
                self._deliver(self.sink)
            if parser.complete:
                self._settle(None)
        elif not self.held:
            self._owner.lost(self)
            self.drop()
        elif parser.complete:
            self._settle(None)
        elif parser.head is not None:
            if parser.pieces or not self._reading:
                self._settle(None)
            self._unread += nbytes
            if self._unread > UNREAD_BYTES:
                self.pause()

    def eof_received(self) -> None:
        # A half-closed backend will send nothing more; what it has not yet read of the request is moot.
        self._end(None)
        self.drop()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc)
        self._transport = None
        self._parser.close()
        if self._timer is not None:
            self._timer.cancel()

    def _end(self, error: Exception | None) -> None:
        self._owner.lost(self)
        if not self.held or self._failure is not None or self._parser.complete:
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

    def _wait(self, seconds: float) -> asyncio.Future[Any]:
        waiter: asyncio.Future[Any] = self._loop.create_future()
        self._waiter = waiter
        self._limit = seconds
        self._deadline = self._timers.next + seconds
        if self._deadline < self._timer_due:
            self._arm(seconds)
            self._deadline = self._timer_due
        return waiter

    def _arm(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._timers.after(seconds, self._expired)
        self._timer_due = self._timers.next + seconds

    def _expired(self) -> None:
        """Waits end without touching the timer, so it mostly finds a later deadline, or nobody waiting."""
        self._timer_due = inf
        if self._waiter is None or self._waiter.done():
            return
        held_back = self.sink is not None and self._paused
        left = self._limit if held_back else self._deadline - self._timers.now
        if left > EARLY_SECONDS:
            self._arm(left)
            return
        phase = self._phase
        if self._parser.head is not None:
            phase = "idle" if self._parser.body_begun else "first_byte"
        self._fail(UpstreamTimeout(phase, self._limit))

    def _settle(self, error: Exception | None) -> None:
        """Wakes whoever waits."""
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        self._waiter = None
        if error is not None:
            waiter.set_exception(error)
            waiter.exception()  # marks it as seen: a holder that gives up is not going to look
        elif self._reading:
            waiter.set_result(None)
        else:
            self._reading = True
            waiter.set_result(self._parser.head)

    def _deliver(self, sink: Callable[[bytes], None]) -> None:
        deadline = self._deadline = self._timers.next + self._limit
        if deadline < self._timer_due:
            self._arm(self._limit)  # it was set for the first piece, which may take longer than the next
        pieces = self._parser.pieces  # as `take` does: one call less for each event of each stream
        piece = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        try:
            sink(piece)
        except Exception as error:  # noqa: BLE001 - raised by whoever awaits the pipe
            self._settle(error)
            self._fail(ConnectionReset("given up", received=self._parser.received))

    def _fail(self, error: UpstreamError) -> None:
        if self._failure is None:
            self._failure = error
        self._settle(error)
        self.drop()
