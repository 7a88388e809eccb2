"""One connection to a backend: its responses, and its life. How requests leave is in `sending`, how long all
may take in `waiting`; what bytes mean is decided in `response_parser`.

A request's life on it: `send` or `send_from`, `head`, then `read` until `b""` or one `pipe`, then `release`
or `abort`. One holder at a time; after `release` or `abort` the holder forgets the object, which may already
serve somebody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from fastllm_proxy.errors import BadResponse, ConnectionReset, UpstreamError, UpstreamTimeout
from fastllm_proxy.response_parser import ResponseHead
from fastllm_proxy.sending import UNSENT_BYTES, Phase, Sending
from fastllm_proxy.stall import untaken
from fastllm_proxy.timers import TimerWheel

UNREAD_BYTES = 262_144
"""Reading pauses when this much has come that nobody has asked for."""

PIPED_BYTES = 16_384
"""A pipe is read in pieces of this size: one of them is what a slow reader holds. What has come before it is
known who reads the body is little more, unless the body is short."""

SHORT_BYTES = 65_536
"""A body up to this length is read whole, and not held back before it is."""


_ASKED = 65_536
"""What libuv asks room for; the answer to any other size is the same, and only slower."""


class _Room(dict[int, memoryview]):
    """Where a connection's bytes are read to: a dictionary, since its lookup serves as `get_buffer` without a
    frame of Python's for each event of each stream."""

    __slots__ = ("_whole",)

    def __init__(self, whole: memoryview) -> None:
        self._whole = self[_ASKED] = whole

    def __missing__(self, asked: int) -> memoryview:
        return self[_ASKED]

    def size(self, size: int | None) -> None:
        """From now on reads bring at most so much, or as much as there is room for."""
        self[_ASKED] = self._whole[:size]


class Owner(Protocol):
    """What a connection tells the pool that it belongs to."""

    def returned(self, connection: UpstreamConnection) -> bool:
        """May be used again; says whether the pool keeps it."""

    def lost(self, connection: UpstreamConnection) -> None:
        """Is closed, or about to be; called once or more."""


class UpstreamConnection(Sending):
    """Buffered, because that bounds what one read brings: else a slow reader's share could be any size.

    State, in the order of a request's life:

    `held`      borrowed from the pool; bytes that come while it is not are nobody's
    `_waiter`   the future that `send_from`, `head` or `read` awaits, or the one that `pipe` gave out
    `sink`      where `pipe` sends what comes; whoever called `pipe` may change it meanwhile
    """

    __slots__ = (
        "_buffer",
        "_owner",
        "_paused",
        "_room",
        "get_buffer",
        "held",
        "idle_since",
        "reused",
        "sink",
        "stirs",
    )

    def __init__(
        self, owner: Owner, loop: asyncio.AbstractEventLoop, timers: TimerWheel, buffer: memoryview
    ) -> None:
        """`buffer` is a bytearray that sockets are read into. Every read is taken out before the next one
        begins, so all connections of a process share one."""
        super().__init__(loop, timers)
        self._owner = owner
        self._buffer = cast(bytearray, buffer.obj)
        self._room = _Room(buffer)
        self.get_buffer = self._room.__getitem__  # type: ignore[assignment]  # takes its argument by position
        self.held = True
        self._paused = False
        self.sink: Callable[[bytes], None] | None = None
        self.idle_since = 0.0
        self.reused = False
        self.stirs: Callable[[int], Sequence[object]]

    # What the holder calls.

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
        self._room.size(PIPED_BYTES)
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
            or self._unsent
            # The answer came before the whole request had left: its rest would be read as the next request.
            or transport.get_write_buffer_size()
        ):
            self.abort()
            return
        self.held = False
        self.sink = None
        self._room.size(None)
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

    # What the pool calls. It also sets `held`, `reused`, `idle_since`; and `stirs`, which says whether bytes
    # or an end are there to be read, waiting so many milliseconds for them.

    @property
    def connected(self) -> bool:
        return self._transport is not None

    def drop(self) -> None:
        """Closes at once."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(UNSENT_BYTES)

    def buffer_updated(self, nbytes: int) -> None:
        parser = self._parser
        try:
            parser.feed(self._buffer[:nbytes])
        except BadResponse as error:
            if parser.pieces and self.sink is not None:
                self._deliver(self.sink)
            elif parser.pieces and self._reading:
                self._settle(None)  # what came before it is read first
            self._fail(error)
            return
        sink = self.sink
        if sink is not None:
            pieces = parser.pieces
            if len(pieces) == 1:  # as `_deliver` does: one call less for each event of each stream
                self._deadline = deadline = self._timers.next + self._limit
                if deadline < self._timer_due:
                    self._arm(self._limit)
                try:
                    sink(pieces.pop())
                except Exception as error:  # noqa: BLE001 - raised by whoever awaits the pipe
                    self._sink_failed(error)
            elif pieces:
                self._deliver(sink)
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
            length = parser.head.content_length
            short = length is not None and length <= SHORT_BYTES
            if self._unread > (UNREAD_BYTES if short else PIPED_BYTES):
                self.pause()

    def eof_received(self) -> None:
        # A half-closed backend will send nothing more; what it has not yet read of the request is moot.
        self._end(None)
        self.drop()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc)
        self._transport = None
        self._parser.close()
        self._stop()

    def _end(self, error: Exception | None) -> None:
        self._owner.lost(self)
        if not self.held or self._failure is not None or self._parser.complete:
            return
        unsent = self._unsent or self._full
        if error is not None:
            detail = f"connection lost: {error}"
            self._fail(ConnectionReset(detail, received=self._parser.received, unsent=unsent))
            return
        try:
            self._parser.end_of_stream()
        except ConnectionReset as early:
            early.unsent = unsent
            # Closing with something unread resets a connection, and what comes after is not acknowledged:
            # an orderly end that acknowledges the request is that of an engine which has read it.
            if self._transport is not None and not self._transport.is_closing():
                early.taken = not untaken(self._transport)
            self._fail(early)
        else:
            self._settle(None)

    # Inside.

    def _held_back(self) -> bool:
        return self.sink is not None and self._paused

    def _give_up(self) -> None:
        phase = self._phase
        if self._unsent or self._full:
            phase = "send"
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
        try:
            sink(self._parser.take())
        except Exception as error:  # noqa: BLE001 - raised by whoever awaits the pipe
            self._sink_failed(error)

    def _sink_failed(self, error: Exception) -> None:
        self._settle(error)
        self._fail(ConnectionReset("given up", received=self._parser.received))

    def _fail(self, error: UpstreamError) -> None:
        if self._failure is None:
            self._failure = error
        self._settle(error)
        self.drop()
