"""What becomes of a backend's answer: it is the client's, or it says that this attempt has failed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from fastllm_proxy.answer_headers import AnswerHeaders
from fastllm_proxy.compressed import mirror_of
from fastllm_proxy.error_text import error_answer, excerpt, read_error, readable_text
from fastllm_proxy.mirror import WholeAnswer
from fastllm_proxy.outcomes import ErrorEvent, Failure
from fastllm_proxy.rejections import names_missing_model, subject_of_event
from fastllm_proxy.relay import Relay, RelayTimes
from fastllm_proxy.verdict import COOL_SECONDS, REJECTED_COOL_SECONDS, Verdict, cool_seconds, judge

if TYPE_CHECKING:
    from fastllm_proxy.backends import Backend
    from fastllm_proxy.exchange import Exchange
    from fastllm_proxy.outcomes import Answer
    from fastllm_proxy.timers import TimerWheel
    from fastllm_proxy.upstream import ResponseHead, UpstreamConnection

WHOLE_BYTES: Final = 64 * 1024
"""An answer up to this length is read whole and leaves in one write; more would grow with slow readers."""


class Delivery:
    __slots__ = ("_timers", "_times")

    def __init__(self, *, timers: TimerWheel, times: RelayTimes) -> None:
        self._timers = timers
        self._times = times

    async def take(
        self,
        exchange: Exchange,
        backend: Backend,
        connection: UpstreamConnection,
        head: ResponseHead,
        first_byte_by: float,
    ) -> Failure | None:
        """Does with an answer what its status says. `first_byte_by` is when a byte of a body must have come,
        by `time.monotonic()`. `None`: the client has its answer. Raises `UpstreamError` while nothing has
        been written."""
        verdict = judge(head.status, head.headers)
        if verdict == "odd":
            return Failure("odd", f"status {head.status} is no answer to a POST")
        if verdict != "final":
            return await self._failed(exchange, backend, connection, head, verdict)
        try:
            await self._deliver(exchange, backend, connection, head, first_byte_by)
        except ErrorEvent as error:
            return _failed_stream(backend, error.answer)
        return None

    async def _failed(
        self,
        exchange: Exchange,
        backend: Backend,
        connection: UpstreamConnection,
        head: ResponseHead,
        verdict: Verdict,
    ) -> Failure | None:
        """An answer whose status says that another backend may do better. `None`: it is the client's after
        all."""
        text = await read_error(connection, self._times.error)
        reason = f"status {head.status}"
        if verdict == "missing?":
            if text is None or names_missing_model(readable_text(head, text)):
                verdict = "failed" if text is None else "rejected"
            else:
                send_answer(exchange, error_answer(exchange, head, text))
                return None
        if verdict == "rejected":
            backend.cooling_until = time.monotonic() + REJECTED_COOL_SECONDS
            return Failure("rejected", f"{reason}: {excerpt(readable_text(head, text), backend)}")
        if verdict == "busy":
            backend.cooling_until = time.monotonic() + cool_seconds(head.headers)
            return Failure("busy", reason, error_answer(exchange, head, text))
        return Failure("answered", reason, error_answer(exchange, head, text))

    async def _deliver(
        self,
        exchange: Exchange,
        backend: Backend,
        connection: UpstreamConnection,
        head: ResponseHead,
        first_byte_by: float,
    ) -> None:
        """Relays an answer that is the client's. Raises `UpstreamError` while nothing has been written."""
        known = backend.answer_headers
        if known is None or known.raw != head.headers:
            known = backend.answer_headers = AnswerHeaders(head.headers)
        length = head.content_length
        idle = self._times.idle
        # A stream's first byte has its own time; the head of any other answer came when all was done.
        assert exchange.peek is not None
        first = max(first_byte_by - time.monotonic(), 0.0) if exchange.peek.stream else idle
        if length is not None and length <= WHOLE_BYTES and not known.event_stream:
            body = await connection.read(first)
            if len(body) != length:
                body += await _read_rest(connection, idle)
            if known.coding:
                exchange.mirror = mirror_of(known.coding, event_stream=False)
                exchange.mirror.add(body)
            else:
                exchange.mirror = WholeAnswer(body)
            exchange.first_byte_at = time.monotonic()
            exchange.status = head.status
            # The connection is free before the client is served: its next request may follow at once. Nothing
            # awaits from here to the `finally` of the attempt, so that one releases nobody else's.
            connection.release()
            exchange.downstream.send_whole(head.status, known.lines, body)
            return
        relay = Relay(
            exchange,
            connection,
            head,
            known.lines,
            event_stream=known.event_stream and head.status == 200,
            coding=known.coding,
            first_byte_seconds=first,
            timers=self._timers,
            times=self._times,
        )
        await relay.run()


def send_answer(exchange: Exchange, answer: Answer) -> None:
    """Sends an error that a backend gave."""
    exchange.status = answer.status
    exchange.downstream.send_whole(answer.status, answer.headers, answer.body)


async def _read_rest(connection: UpstreamConnection, idle_seconds: float) -> bytes:
    pieces = []
    while piece := await connection.read(idle_seconds):
        pieces.append(piece)
    return b"".join(pieces)


def _failed_stream(backend: Backend, answer: Answer) -> Failure:
    """A stream that began with an error: its status was 200 before the engine knew."""
    subject = subject_of_event(answer.body)
    reason = "the stream began with an error event"
    if subject == "rejected":
        backend.cooling_until = time.monotonic() + REJECTED_COOL_SECONDS
        return Failure("rejected", f"{reason}: {excerpt(answer.body, backend)}")
    if subject == "busy":
        backend.cooling_until = time.monotonic() + COOL_SECONDS
        return Failure("busy", reason, answer)
    return Failure("answered", reason, answer)
