"""An answer's way from a backend to the client, piece by piece, straight from one socket to the other.

A stream begins by being held: head and first event stay here until the event is known to be content. An error
there is a failed attempt, and another backend may do better. It is held for at most 64 KiB and 15 s; then
what is there is written, and the attempt is final.

    holding ──content, or too much, or too long──▶ flowing ──end──▶ done
       └──error, or death──▶ failed                    └──death──▶ cut: the client must see that
"""

from __future__ import annotations

import time
from types import ModuleType
from typing import TYPE_CHECKING, Final

import msgspec

from fastllm_proxy.dialects import anthropic, openai
from fastllm_proxy.errors import UpstreamError, UpstreamTimeout
from fastllm_proxy.mirror import SLACK_BYTES, Mirror
from fastllm_proxy.outcomes import Answer
from fastllm_proxy.sse import UsageHider, event_end, fields

if TYPE_CHECKING:
    from fastllm_proxy.exchange import Exchange
    from fastllm_proxy.response_parser import ResponseHead
    from fastllm_proxy.timers import Timer, TimerWheel
    from fastllm_proxy.upstream_connection import UpstreamConnection

HELD_BYTES: Final = 64 * 1024


class RelayTimes(msgspec.Struct, frozen=True):
    """Seconds: `held` until the head goes without an event, `idle` between two pieces."""

    held: float = 15.0
    idle: float = 300.0


class ErrorEvent(UpstreamError):
    """The first event of a stream was an error. `answer` is what came so far."""

    def __init__(self, answer: Answer) -> None:
        super().__init__("the stream began with an error event")
        self.answer = answer


class Relay:
    """One answer. `run` returns when it has been delivered or cut; it raises `UpstreamError` only while
    nothing has gone to the client."""

    __slots__ = (
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
        "_mirror",
        "_scanned",
        "_silent",
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
        encoding: bytes,
        first_byte_seconds: float,
        timers: TimerWheel,
        times: RelayTimes,
    ) -> None:
        """`headers` are the lines for the client. `first_byte_seconds` is what is left until a byte must have
        come."""
        self._exchange = exchange
        self._connection = connection
        self._downstream = exchange.downstream
        self._write = exchange.downstream.write
        self._head = head
        self._headers = headers
        self._event_stream = event_stream
        self._timers = timers
        self._times = times
        self._mirror = exchange.mirror = Mirror(event_stream=event_stream, encoding=encoding)
        self._hider = UsageHider() if event_stream and exchange.injected_usage else None
        self._held = b""
        self._scanned = 0
        self._started = False
        self._silent = True  # nothing but the head has gone so far
        self._failure: UpstreamError | None = None
        self._first_byte_seconds = first_byte_seconds

    async def run(self) -> None:
        """Relays until the end."""
        first_byte_seconds = self._first_byte_seconds
        timers: list[Timer] = []
        connection, downstream = self._connection, self._downstream
        downstream.follow(connection.pause, connection.resume)
        try:
            piped = connection.pipe(self.feed, self._times.idle, first_byte_seconds)
            if not self._started and not piped.done():
                timers.append(self._timers.after(first_byte_seconds, self._expire))
                if self._event_stream:
                    timers.append(self._timers.after(self._times.held, self._let_go))
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
            for timer in timers:
                timer.cancel()

    def feed(self, piece: bytes) -> None:
        """Takes the next piece of the body until the head has gone; called from the backend's side."""
        self._mirror.add(piece)
        if self._exchange.first_byte_at is None and not self._event_stream:
            self._exchange.first_byte_at = time.monotonic()
        held = self._held = self._held + piece if self._held else piece
        if not self._event_stream or len(held) > HELD_BYTES or self._shows_content():
            self._start()

    def _flow(self, piece: bytes) -> None:
        """Takes the next piece once the head has gone: what happens for each event of each stream, so calls
        are spared here."""
        mirror = self._mirror
        mirror.parts.append(piece)
        mirror.size += len(piece)
        if mirror.size > SLACK_BYTES:
            mirror.trim()
        if self._silent:
            self._silent = False
            self._exchange.first_byte_at = time.monotonic()
        hider = self._hider
        # Most pieces are whole events without usage: there is nothing to hide in them.
        if hider is not None and (hider.held or b'"usage"' in piece or piece[-2:] != b"\n\n"):
            piece = hider.feed(piece)
        self._write(piece)

    def _shows_content(self) -> bool:
        """Whether the held text has an event that is no error. Fails the attempt if it is one."""
        held = self._held
        while (end := event_end(held, self._scanned)) >= 0:
            name, data = fields(held[self._scanned : end])
            self._scanned = end
            if not data:
                continue  # a comment, or nothing
            if self._dialect.is_error(name, data):
                self._fail(ErrorEvent(Answer(self._head.status, self._headers, held)))
                return False
            return True
        return False

    def _start(self) -> None:
        """Writes the head with what was held; from here on the attempt is final."""
        self._started = True
        exchange = self._exchange
        first, self._held = self._held, b""
        if first and exchange.first_byte_at is None:
            exchange.first_byte_at = time.monotonic()
        if self._hider is not None and first:
            first = self._hider.feed(first)
        exchange.status = self._head.status
        exchange.forget_body()
        self._silent = exchange.first_byte_at is None
        self._connection.sink = self._flow
        self._downstream.start(self._head.status, self._headers, self._head.content_length, first)
        if self._downstream.paused:  # since before this answer
            self._connection.pause()

    def _let_go(self) -> None:
        if not self._started and self._failure is None:
            self._start()

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
        if self._event_stream:
            timed_out = isinstance(error, UpstreamTimeout)
            code = "upstream_timeout" if timed_out else "upstream_disconnected"
            message = (
                "the backend stopped sending"
                if timed_out
                else "the backend broke off before the answer was complete"
            )
            self._exchange.code = code
            self._write(self._line_break() + self._dialect.error_event(message, code))
        self._downstream.cut()

    def _line_break(self) -> bytes:
        """Ends an event that the client has only a part of, lest the error become a part of it too."""
        if self._hider is not None:
            return b"\n\n" if self._hider.within else b""
        seen = self._mirror.tail()[-4:]
        return b"" if not seen or seen.endswith((b"\n\n", b"\r\n\r\n")) else b"\n\n"

    @property
    def _dialect(self) -> ModuleType:
        return anthropic if self._exchange.endpoint.dialect == "anthropic" else openai
