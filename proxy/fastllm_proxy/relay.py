"""An answer's way from a backend to the client, piece by piece, straight from one socket to the other.

A stream begins by being held: head and first event stay here until the event is known to be content. An error
there is a failed attempt, and another backend may do better. It is held for at most 64 KiB and 15 s, or the
ping interval if that is shorter; then what is there is written, and the attempt is final.

    holding ──content, or too much, or too long──▶ flowing ──end──▶ done
       └──error, or death──▶ failed                    └──death──▶ cut: the client must see that

A compressed stream passes unseen: nothing is hidden in it, written into it or known of its first event.
"""

from __future__ import annotations

import time
from types import ModuleType
from typing import TYPE_CHECKING, Final

import msgspec

from fastllm_proxy.compressed import mirror_of
from fastllm_proxy.dialects import anthropic, openai
from fastllm_proxy.downstream import READY_SIZES, SIZE_LINES
from fastllm_proxy.errors import UpstreamError, UpstreamTimeout
from fastllm_proxy.outcomes import Answer, ErrorEvent
from fastllm_proxy.sse import END_BYTES, PING, USAGE, UsageHider, ends_event, event_end, fields
from fastllm_proxy.stall import StallWatch

if TYPE_CHECKING:
    from fastllm_proxy.exchange import Exchange
    from fastllm_proxy.outflow import Outflow
    from fastllm_proxy.response_parser import ResponseHead
    from fastllm_proxy.timers import Timer, TimerWheel
    from fastllm_proxy.upstream_connection import UpstreamConnection

HELD_BYTES: Final = 64 * 1024


class RelayTimes(msgspec.Struct, frozen=True):
    """Seconds: `held` until the head goes without an event, `idle` between two pieces, `error` for all of the
    text of an error that another backend may do better than, `ping` between two signs of life to the client
    of a silent event stream (`None`: there are none), `stalled` until a client that takes nothing is given
    up."""

    held: float = 15.0
    idle: float = 300.0
    error: float = 15.0
    ping: float | None = None
    stalled: float = 300.0


class Relay:
    """One answer. `run` returns when it has been delivered or cut; it raises `UpstreamError` only while
    nothing has gone to the client."""

    __slots__ = (
        "_compressed",
        "_connection",
        "_downstream",
        "_event_stream",
        "_exchange",
        "_failure",
        "_first_byte_seconds",
        "_head",
        "_headers",
        "_held",
        "_hider",
        "_looked",
        "_looks_left",
        "_mirror",
        "_outflow",
        "_pinging",
        "_scanned",
        "_silent",
        "_stall",
        "_started",
        "_timers",
        "_times",
        "_write",
    )

    def __init__(
        self,
        exchange: Exchange,
        connection: UpstreamConnection,
        head: ResponseHead,
        headers: bytes,
        *,
        event_stream: bool,
        coding: bytes,
        first_byte_seconds: float,
        timers: TimerWheel,
        times: RelayTimes,
    ) -> None:
        """`headers` are the lines for the client, `coding` is how the body is compressed, empty for not at
        all. `first_byte_seconds` is what is left until a byte must have come."""
        self._exchange = exchange
        self._connection = connection
        self._downstream = exchange.downstream
        self._write = exchange.downstream.write
        self._outflow: Outflow | None = None  # set where `_flow` may write chunks to it
        self._head = head
        self._headers = headers
        self._compressed = bool(coding)
        self._event_stream = event_stream
        self._timers = timers
        self._times = times
        self._mirror = exchange.mirror = mirror_of(coding, event_stream=event_stream)
        readable = event_stream and not coding
        self._hider = UsageHider() if readable and exchange.injected_usage else None
        self._held: bytes | bytearray = b""
        self._scanned = 0  # where in it the first event begins that is not judged yet
        self._looked = 0  # up to where it was searched for the end of that event
        self._started = False
        self._silent = True  # nothing has gone since the head, or since the last look
        self._pinging: Timer | None = None
        self._looks_left = 1
        self._stall: StallWatch | None = None
        self._failure: UpstreamError | None = None
        self._first_byte_seconds = first_byte_seconds

    async def run(self) -> None:
        """Relays until the end."""
        timers: list[Timer] = []
        connection, downstream = self._connection, self._downstream
        downstream.follow(self._hold_back, self._go_on)
        try:
            piped = connection.pipe(self.feed, self._times.idle, self._first_byte_seconds)
            if not piped.done():
                self._set_timers(timers)
            await piped
        except UpstreamError as error:
            cause = self._failure or error
            if not self._started:
                raise cause from None
            self._cut(cause)
        else:
            self._finish()
        finally:
            downstream.follow(None, None)
            if self._stall is not None:
                self._stall.end()
            if self._pinging is not None:
                self._pinging.cancel()
            for timer in timers:
                timer.cancel()

    def _set_timers(self, timers: list[Timer]) -> None:
        ping = self._times.ping if self._event_stream and not self._compressed else None
        if not self._started:
            timers.append(self._timers.after(self._first_byte_seconds, self._expire))
            if self._event_stream:
                held = self._times.held if ping is None else min(self._times.held, ping)
                timers.append(self._timers.after(held, self._let_go))
        if ping is not None:
            self._pinging = self._timers.after(ping / 2, self._look)

    def feed(self, piece: bytes) -> None:
        """Takes the next piece of the body until the head has gone; called from the backend's side."""
        self._mirror.add(piece)
        if not self._event_stream or self._compressed:
            if self._exchange.first_byte_at is None:
                self._exchange.first_byte_at = time.monotonic()
            self._held = piece
            self._start()
            return
        if not self._held:
            self._held = piece
        elif isinstance(self._held, bytearray):
            self._held += piece
        else:
            self._held = bytearray(self._held) + piece
        if len(self._held) > HELD_BYTES or self._shows_content():
            self._start()

    def _flow(self, piece: bytes) -> None:
        """Takes the next piece once the head has gone: what happens for each event of each stream, so calls
        are spared here."""
        mirror = self._mirror
        text = mirror.text
        text += piece
        if len(text) > mirror.limit:
            mirror.trim()
        if self._silent:
            self._note_first()
        hider = self._hider
        # Most pieces are whole events without usage: there is nothing to hide in them.
        if hider is not None and (hider.held or piece.find(USAGE) >= 0 or piece[-2:] != b"\n\n"):
            piece = hider.feed(piece)
            if not piece:
                self._silent = True
                return
        outflow = self._outflow
        size = len(piece)
        if outflow is not None and 0 < size < READY_SIZES:  # as `Downstream.write` does
            transport = outflow.transport
            if transport is not None:
                transport.write(SIZE_LINES[size] + piece + b"\r\n")
            return
        write = self._write
        write(piece)

    def _flow_compressed(self, piece: bytes) -> None:
        """The same for what cannot be read."""
        self._mirror.add(piece)
        if self._silent:
            self._note_first()
        self._write(piece)

    def _note_first(self) -> None:
        """The first piece since the head, or since the last look."""
        self._silent = False
        if self._exchange.first_byte_at is None:
            self._exchange.first_byte_at = time.monotonic()

    def _look(self) -> None:
        """Writes a ping if the client has got nothing for a while. Looks come every half interval: after the
        last event one without news suffices, so that no silence is longer than the interval; between two
        pings there are two of them."""
        self._look_again()
        if not self._started:
            return
        if not self._silent:
            self._silent = True
            self._looks_left = 1
            return
        self._looks_left -= 1
        if self._looks_left <= 0:
            self._ping()

    def _look_again(self) -> None:
        assert self._times.ping is not None
        self._pinging = self._timers.after(self._times.ping / 2, self._look)

    def _ping(self) -> None:
        self._looks_left = 2
        if not self._downstream.paused and not self._within_event():
            self._write(PING)

    def _shows_content(self) -> bool:
        """Whether the held text has an event that is no error. Fails the attempt if it is one."""
        held = self._held
        while (end := event_end(held, max(self._scanned, self._looked - END_BYTES))) >= 0:
            name, data = fields(held[self._scanned : end])
            self._scanned = end
            if not data:
                continue  # a comment, or nothing
            if self._dialect.is_error(name, data):
                self._fail(ErrorEvent(Answer(self._head.status, self._headers, bytes(held))))
                return False
            return True
        self._looked = len(held)
        return False

    def _start(self) -> None:
        """Writes the head with what was held; from here on the attempt is final."""
        self._started = True
        exchange = self._exchange
        first, self._held = bytes(self._held), b""
        if first and exchange.first_byte_at is None:
            exchange.first_byte_at = time.monotonic()
        if self._hider is not None and first:
            first = self._hider.feed(first)
        exchange.status = self._head.status
        exchange.forget_body()
        self._silent = exchange.first_byte_at is None
        self._connection.sink = self._flow_compressed if self._compressed else self._flow
        self._downstream.start(self._head.status, self._headers, self._length(), first)
        if self._downstream.chunked:
            self._outflow = self._downstream.outflow
        if self._downstream.paused and self._stall is None:  # since before this answer
            self._hold_back()

    def _length(self) -> int | None:
        """What the client is told of the body's length. A stream that is read may lose its usage event, and
        gain pings and an error: the backend's figure would end it early, or never."""
        return None if self._event_stream and not self._compressed else self._head.content_length

    def _hold_back(self) -> None:
        """The client is slow."""
        self._connection.pause()
        transport = self._downstream.transport
        if transport is not None:
            self._stall = StallWatch(transport, self._timers, self._times.stalled, self._give_up)

    def _go_on(self) -> None:
        if self._stall is not None:
            self._stall.end()
            self._stall = None
        self._connection.resume()

    def _give_up(self) -> None:
        """The client takes nothing. Without its connection this exchange is cancelled, as for one that went
        away."""
        self._exchange.code = "client_stalled"
        self._downstream.abort()

    def _let_go(self) -> None:
        if not self._started and self._failure is None:
            self._start()
            if self._pinging is not None:
                self._pinging.cancel()
                self._look_again()
                self._ping()

    def _expire(self) -> None:
        if self._mirror.empty:
            self._fail(UpstreamTimeout("first_byte", self._first_byte_seconds))

    def _fail(self, error: UpstreamError) -> None:
        """Gives the answer up; `run`, which waits for the connection, is woken by that."""
        self._failure = error
        self._connection.abort()

    def _finish(self) -> None:
        """The backend's answer is complete."""
        if not self._started:
            self._start()  # an empty body, or a stream without any event
        if self._hider is not None and (rest := self._hider.rest()):
            self._write(rest)
        self._downstream.end()

    def _cut(self, error: UpstreamError) -> None:
        """The backend died under a client that has a part already."""
        self._exchange.status = 502
        self._connection.abort()
        timed_out = isinstance(error, UpstreamTimeout)
        code = self._exchange.code = "upstream_timeout" if timed_out else "upstream_disconnected"
        if self._event_stream and not self._compressed:
            message = (
                "the backend stopped sending"
                if timed_out
                else "the backend broke off before the answer was complete"
            )
            # Ends an event that the client has only a part of, lest the error become a part of it too.
            gap = b"\n\n" if self._within_event() else b""
            self._write(gap + self._dialect.error_event(message, code))
        self._downstream.cut()

    def _within_event(self) -> bool:
        """Whether the client has a part of an event without its end."""
        if self._hider is not None:
            return self._hider.within
        last = self._mirror.text[-END_BYTES:]
        return bool(last) and not ends_event(last)

    @property
    def _dialect(self) -> ModuleType:
        return anthropic if self._exchange.endpoint.dialect == "anthropic" else openai
