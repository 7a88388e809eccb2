"""Sends a request to backends until one answers, and relays the answer.

Until a byte has gone to the client, an attempt that fails may be followed by one elsewhere: see `attempts`
for who is next, `verdict` for what counts as a failure, `outcomes` for which attempt decides when all have
failed.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import msgspec

from fastllm_proxy.attempts import Candidates, RetryBudget
from fastllm_proxy.backends import Backend, InFlight
from fastllm_proxy.errors import BadResponse, ConnectionReset, Refused, UpstreamError
from fastllm_proxy.mirror import Mirror
from fastllm_proxy.outcomes import Answer, Failure, Outcomes, failure_of
from fastllm_proxy.peek import Edit, ask_for_usage, rename, splice
from fastllm_proxy.relay import ErrorEvent, Relay, RelayTimes
from fastllm_proxy.sse import EVENT_STREAM
from fastllm_proxy.verdict import (
    REJECTED_COOL_SECONDS,
    cool_seconds,
    judge,
    speaks_of_model,
)
from fastllm_proxy.wire import header, passing_response_headers, request_head

if TYPE_CHECKING:
    from fastllm_proxy.balancer import Balancer
    from fastllm_proxy.exchange import Exchange
    from fastllm_proxy.gate import Gates
    from fastllm_proxy.metrics import Metrics
    from fastllm_proxy.observe import Log
    from fastllm_proxy.timers import TimerWheel
    from fastllm_proxy.traffic import Traffic
    from fastllm_proxy.upstream import ResponseHead, UpstreamConnection

WHOLE_BYTES: Final = 64 * 1024
"""An answer up to this length is read whole and leaves in one write; more would grow with slow readers."""

ERROR_BYTES: Final = 1024 * 1024
"""How much of an error's text is kept while another backend is tried."""

ERROR_SECONDS: Final = 15.0
"""How long an error's text may take, all of it."""

BACK_OFF_SECONDS: Final = (0.025, 0.05, 0.1)
_SHOWN_CHARACTERS: Final = 300


class ForwardSettings(msgspec.Struct, frozen=True):
    """Seconds to the first byte of a stream, and to the head of any other answer; a backend may have its own.
    `max_retries`: further backends per target. `stale`: a connection that was closed while idle says so
    within a round trip of being written to."""

    upstream_timeout: float = 120.0
    response_timeout: float = 600.0
    max_retries: int = 2
    stale: float = 1.0
    relay: RelayTimes = RelayTimes()


class Forwarder:
    __slots__ = (
        "_balancer",
        "_gates",
        "_log",
        "_metrics",
        "_noise",
        "_retries",
        "_settings",
        "_sleep",
        "_timers",
        "_traffic",
    )

    def __init__(
        self,
        *,
        settings: ForwardSettings,
        balancer: Balancer,
        gates: Gates,
        traffic: Traffic,
        timers: TimerWheel,
        metrics: Metrics,
        log: Log,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        noise: Callable[[], float] = random.random,
    ) -> None:
        """`sleep` waits between attempts; `noise` gives numbers in [0, 1) for their jitter."""
        self._settings = settings
        self._balancer = balancer
        self._gates = gates
        self._traffic = traffic
        self._timers = timers
        self._metrics = metrics
        self._log = log
        self._sleep = sleep
        self._noise = noise
        self._retries = RetryBudget()

    async def forward(self, exchange: Exchange) -> None:
        """Answers the client, or raises `Refused`."""
        candidates = Candidates(exchange, self._balancer, self._gates, self._settings.max_retries)
        backend = candidates.next()
        if backend is None:
            raise _no_backend(exchange)
        self._retries.in_flight += 1
        try:
            failure = await self._attempt(exchange, backend)
            if failure is not None:
                await self._go_on(exchange, candidates, failure)
        finally:
            self._retries.in_flight -= 1

    async def _go_on(self, exchange: Exchange, candidates: Candidates, failure: Failure) -> None:
        """What follows a first attempt that failed."""
        assert exchange.frontend is not None
        model = exchange.frontend.name
        outcomes = Outcomes(retry_on_timeout=exchange.frontend.entry.retry_on_timeout)
        outcomes.add(failure)
        retries = self._retries
        while outcomes.may_retry() and retries.allows_another():
            backend = candidates.next()
            if backend is None:
                break
            retries.retrying += 1
            try:
                self._metrics.failed_over(model)
                await self._sleep(self._pause(exchange.attempts, busy=outcomes.last_kind == "busy"))
                next_failure = await self._attempt(exchange, backend)
            finally:
                retries.retrying -= 1
            if next_failure is None:
                return
            outcomes.add(next_failure)
        _send(exchange, outcomes.decide(model))

    def _pause(self, attempts: int, *, busy: bool) -> float:
        base = BACK_OFF_SECONDS[min(attempts, len(BACK_OFF_SECONDS)) - 1] * (2 if busy else 1)
        return base * (0.5 + self._noise())

    async def _attempt(self, exchange: Exchange, backend: Backend) -> Failure | None:
        """One try. `None`: the client has its answer."""
        exchange.attempts += 1
        exchange.backend = backend
        exchange.mirror = None
        status: int | None = None
        connection: UpstreamConnection | None = None
        if not self._gates.try_enter(backend):
            await self._gates.enter(backend, exchange)
        guard = InFlight(backend)
        try:
            body = self._body_for(exchange, backend)
            head = request_head(exchange, backend, sum(map(len, body)))
            connection = backend.pool.take() or await backend.pool.connect()
            sent_at = time.monotonic()
            if exchange.sent_at is None:
                exchange.sent_at = sent_at
            patience = self._patience(exchange, backend)
            connection.send(head, *body)
            try:
                answer = await connection.head(patience)
            except ConnectionReset as error:
                # It was closed while idle, and we had not heard of it yet: that says nothing about the
                # backend. Had it been open, the backend may have begun: later than this it died of the work.
                stale = connection.reused and not error.received
                if not stale or time.monotonic() - sent_at > self._settings.stale:
                    raise
                connection.abort()
                connection = await backend.pool.connect()
                connection.send(head, *body)
                answer = await connection.head(patience)
            body.clear()
            status = answer.status
            self._traffic.answered(backend, status)
            failure = await self._take(exchange, backend, connection, answer, sent_at + patience)
            if failure is None and exchange.first_byte_at is not None:
                self._traffic.first_byte(backend, exchange.first_byte_at - sent_at)
        except ErrorEvent as error:
            failure = Failure("answered", str(error), error.answer)
        except UpstreamError as error:
            self._traffic.failed(backend, error)
            failure = failure_of(error)
        finally:
            if connection is not None:
                connection.release()
            guard.release()
            self._gates.leave(backend)
            self._metrics.attempted(backend.id, status)
        if failure is not None:
            self._note(exchange, backend, failure)
        return failure

    def _body_for(self, exchange: Exchange, backend: Backend) -> list[bytes | bytearray | memoryview]:
        """The client's body as this backend is to see it."""
        seen, body = exchange.peek, exchange.body
        assert seen is not None
        edits: list[Edit] = []
        if seen.model != backend.entry.upstream_model:
            edits.append(rename(seen, backend.entry.upstream_model))
        exchange.injected_usage = False
        if seen.stream and exchange.endpoint.splices_usage and backend.provider.stream_usage != "never":
            edit = ask_for_usage(seen, body)
            if edit is not None:
                edits.append(edit)
                exchange.injected_usage = True
        return splice(body, edits)

    def _patience(self, exchange: Exchange, backend: Backend) -> float:
        """Seconds from sending to the first byte of a stream, or to the head of any other answer."""
        assert exchange.peek is not None
        if exchange.peek.stream:
            return backend.entry.upstream_timeout_seconds or self._settings.upstream_timeout
        return backend.entry.response_timeout_seconds or self._settings.response_timeout

    async def _take(
        self,
        exchange: Exchange,
        backend: Backend,
        connection: UpstreamConnection,
        head: ResponseHead,
        first_byte_by: float,
    ) -> Failure | None:
        """Does with an answer what its status says."""
        verdict = judge(head.status, head.headers)
        if verdict == "final":
            await self._deliver(exchange, connection, head, first_byte_by)
            return None
        if verdict == "odd":
            raise BadResponse(f"status {head.status} is no answer to a POST")
        text = await _read_error(connection)
        if verdict == "missing?" and not speaks_of_model(text):
            _send(exchange, _answer(head, text))
            return None
        shown = f"status {head.status}: {_excerpt(text, backend)}"
        if verdict in ("rejected", "missing?"):
            backend.cooling_until = time.monotonic() + REJECTED_COOL_SECONDS
            return Failure("rejected", shown)
        if verdict == "busy":
            backend.cooling_until = time.monotonic() + cool_seconds(head.headers)
            return Failure("busy", f"status {head.status}", _answer(head, text))
        return Failure("answered", f"status {head.status}", _answer(head, text))

    async def _deliver(
        self, exchange: Exchange, connection: UpstreamConnection, head: ResponseHead, first_byte_by: float
    ) -> None:
        """Relays an answer that is the client's. Raises `UpstreamError` while nothing has been written."""
        kind = header(head.headers, b"content-type") or b""
        encoding = (header(head.headers, b"content-encoding") or b"").lower().removeprefix(b"identity")
        event_stream = kind[:17].lower() == EVENT_STREAM
        lines = passing_response_headers(head.headers, event_stream=event_stream)
        length = head.content_length
        if length is not None and length <= WHOLE_BYTES and not event_stream:
            body = await connection.read(self._settings.relay.idle)
            if len(body) != length:
                body += await _read_rest(connection, self._settings.relay.idle)
            mirror = exchange.mirror = Mirror(event_stream=False, encoding=encoding)
            mirror.add(body)
            exchange.first_byte_at = time.monotonic()
            exchange.status = head.status
            # The connection is free before the client is served: its next request may follow at once. Nothing
            # awaits from here to the `finally` of the attempt, so that one releases nobody else's.
            connection.release()
            exchange.downstream.send_whole(head.status, lines, body)
            return
        relay = Relay(
            exchange,
            connection,
            head,
            lines,
            event_stream=event_stream and head.status == 200 and not encoding,
            encoding=encoding,
            first_byte_seconds=max(first_byte_by - time.monotonic(), 0.0),
            timers=self._timers,
            times=self._settings.relay,
        )
        await relay.run()

    def _note(self, exchange: Exchange, backend: Backend, failure: Failure) -> None:
        self._log.warning(
            "attempt failed",
            request_id=exchange.request_id,
            backend=backend.id,
            provider=backend.provider.name,
            model=backend.model.name,
            kind=failure.kind,
            reason=failure.reason,
        )


async def _read_rest(connection: UpstreamConnection, idle_seconds: float) -> bytes:
    pieces = []
    while piece := await connection.read(idle_seconds):
        pieces.append(piece)
    return b"".join(pieces)


async def _read_error(connection: UpstreamConnection) -> bytes:
    """An error's text, whole."""
    pieces = []
    size = 0
    deadline = time.monotonic() + ERROR_SECONDS
    while piece := await connection.read(max(deadline - time.monotonic(), 0.0)):
        pieces.append(piece)
        size += len(piece)
        if size > ERROR_BYTES:
            raise BadResponse("an error with an endless text")
    return b"".join(pieces)


def _answer(head: ResponseHead, text: bytes) -> Answer:
    return Answer(head.status, passing_response_headers(head.headers, event_stream=False), text)


def _send(exchange: Exchange, answer: Answer) -> None:
    exchange.status = answer.status
    exchange.downstream.send_whole(answer.status, answer.headers, answer.body)


def _excerpt(text: bytes, backend: Backend) -> str:
    """A provider's words for the log, without the secrets that it may repeat: an extra header often holds
    another one."""
    shown = text.decode("utf-8", "replace")
    provider = backend.provider
    for secret in (provider.credential, *(value for _, value in provider.extra_headers)):
        if secret:
            shown = shown.replace(secret, "***")
    return shown[:_SHOWN_CHARACTERS]


def _no_backend(exchange: Exchange) -> Refused:
    assert exchange.frontend is not None
    return Refused(503, "no_backend", f"no backend serves {exchange.frontend.name} at present")
