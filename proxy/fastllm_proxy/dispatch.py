"""One attempt: one try of one backend, from its gate to what became of it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from fastllm_proxy.backends import Backend, InFlight
from fastllm_proxy.errors import ConnectionReset, UpstreamError
from fastllm_proxy.outcomes import Failure, failure_of
from fastllm_proxy.rewrite import body_for, upload_for
from fastllm_proxy.wire import request_head

if TYPE_CHECKING:
    from fastllm_proxy.delivery import Delivery
    from fastllm_proxy.exchange import Exchange
    from fastllm_proxy.gate import Gates
    from fastllm_proxy.metrics import Metrics
    from fastllm_proxy.observe import Log
    from fastllm_proxy.retries import RetryBudget
    from fastllm_proxy.rewrite import Upload
    from fastllm_proxy.traffic import Traffic
    from fastllm_proxy.upstream import UpstreamConnection


class Patience(msgspec.Struct, frozen=True):
    """Seconds from sending to the first byte of a stream, and to the head of any other answer; a backend may
    have its own. `stale`: a connection that was closed while idle says so within a round trip of being
    written to, and round trips across the world take 0.3 s; what is reset later may have been begun."""

    stream: float = 120.0
    whole: float = 600.0
    stale: float = 0.4


class Dispatcher:
    __slots__ = ("_delivery", "_gates", "_log", "_metrics", "_patience", "_retries", "_traffic")

    def __init__(
        self,
        *,
        patience: Patience,
        delivery: Delivery,
        gates: Gates,
        retries: RetryBudget,
        traffic: Traffic,
        metrics: Metrics,
        log: Log,
    ) -> None:
        self._patience = patience
        self._delivery = delivery
        self._gates = gates
        self._retries = retries
        self._traffic = traffic
        self._metrics = metrics
        self._log = log

    async def dispatch(self, exchange: Exchange, backend: Backend) -> Failure | None:
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
            body = body_for(exchange, backend)
            upload = None if exchange.form is None else upload_for(exchange, backend)
            head = request_head(exchange, backend, sum(map(len, body)) if upload is None else upload.size)
            # An upload takes a new connection: it is not to find out late that one was closed while idle.
            connection = (upload is None and backend.pool.take()) or await backend.pool.connect()
            sent_at = time.monotonic()
            exchange.sent_at = exchange.sent_at or sent_at
            patience = self._seconds_for(exchange, backend)
            if upload is None:
                connection.send(head, *body)
            else:
                sent_at = await _send_upload(connection, head, upload, patience)
            try:
                answer = await connection.head(patience)
            except ConnectionReset as error:
                if not (connection.reused and self._was_idle(error, sent_at)):
                    raise
                connection.abort()
                connection = await _connect_again(backend, error)
                sent_at = time.monotonic()
                connection.send(head, *body)
                answer = await connection.head(patience)
            body.clear()
            status = answer.status
            self._traffic.answered(backend, status)
            failure = await self._delivery.take(exchange, backend, connection, answer, sent_at + patience)
            if failure is None and exchange.first_byte_at is not None:
                self._traffic.first_byte(backend, exchange.first_byte_at - sent_at, exchange.first_byte_at)
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

    def _was_idle(self, error: ConnectionReset, sent_at: float) -> bool:
        """Whether a kept connection was closed while idle, and we had not heard of it yet: that says nothing
        about the backend. Had it been open, the backend may have begun: if it has taken the request, or later
        than this, it died of the work. A reset within that time may be either: so many of them are believed
        as there may be retries."""
        if error.received or error.taken:
            return False
        if error.unsent or error.taken is False:
            return True
        return time.monotonic() - sent_at <= self._patience.stale and self._retries.resend()

    def _seconds_for(self, exchange: Exchange, backend: Backend) -> float:
        """Seconds from sending to the first byte of a stream, or to the head of any other answer."""
        assert exchange.peek is not None
        if exchange.peek.stream:
            return backend.entry.upstream_timeout_seconds or self._patience.stream
        return backend.entry.response_timeout_seconds or self._patience.whole

    def _note(self, exchange: Exchange, backend: Backend, failure: Failure) -> None:
        """What is left of an attempt that failed: a line in the log."""
        exchange.mirror = None  # what it holds is nobody's usage
        self._log.warning(
            "attempt failed",
            request_id=exchange.request_id,
            backend=backend.id,
            provider=backend.provider.name,
            model=backend.model.name,
            kind=failure.kind,
            reason=failure.reason,
        )


async def _send_upload(connection: UpstreamConnection, head: bytes, upload: Upload, patience: float) -> float:
    """Returns when it had been sent, by `time.monotonic()`."""
    await connection.send_from(head, upload.next_piece, patience)
    return time.monotonic()


async def _connect_again(backend: Backend, error: ConnectionReset) -> UpstreamConnection:
    """In place of a connection that broke with `error`. When none can be had the engine is gone, and may well
    have died of this very request: `error` is what has happened then, lest it tour the siblings."""
    try:
        return await backend.pool.connect()
    except UpstreamError:
        raise error from None
