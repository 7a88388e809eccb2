"""What becomes of a backend's answer: it is the client's, or it says that this attempt has failed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from fastllm_proxy.compressed import coding_of, mirror_of, readable
from fastllm_proxy.errors import BadResponse
from fastllm_proxy.outcomes import Answer, Failure
from fastllm_proxy.relay import Relay, RelayTimes
from fastllm_proxy.sse import EVENT_STREAM
from fastllm_proxy.verdict import REJECTED_COOL_SECONDS, cool_seconds, judge, speaks_of_model
from fastllm_proxy.wire import header, passing_response_headers

if TYPE_CHECKING:
    from fastllm_proxy.backends import Backend
    from fastllm_proxy.exchange import Exchange
    from fastllm_proxy.timers import TimerWheel
    from fastllm_proxy.upstream import ResponseHead, UpstreamConnection

WHOLE_BYTES: Final = 64 * 1024
"""An answer up to this length is read whole and leaves in one write; more would grow with slow readers."""

ERROR_BYTES: Final = 1024 * 1024
"""How much of an error's text is kept while another backend is tried."""

ERROR_SECONDS: Final = 15.0
"""How long an error's text may take, all of it."""

_SHOWN_CHARACTERS: Final = 300


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
        if verdict == "final":
            await self._deliver(exchange, connection, head, first_byte_by)
            return None
        if verdict == "odd":
            raise BadResponse(f"status {head.status} is no answer to a POST")
        text = await _read_error(connection)
        plain = readable(text, coding_of(head.headers))
        if verdict == "missing?" and not speaks_of_model(plain):
            send_answer(exchange, _answer(head, text))
            return None
        shown = f"status {head.status}: {_excerpt(plain, backend)}"
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
        coding = coding_of(head.headers)
        event_stream = kind[:17].lower() == EVENT_STREAM
        lines = passing_response_headers(head.headers, event_stream=event_stream)
        length = head.content_length
        if length is not None and length <= WHOLE_BYTES and not event_stream:
            body = await connection.read(self._times.idle)
            if len(body) != length:
                body += await _read_rest(connection, self._times.idle)
            mirror = exchange.mirror = mirror_of(coding, event_stream=False)
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
            event_stream=event_stream and head.status == 200,
            coding=coding,
            first_byte_seconds=max(first_byte_by - time.monotonic(), 0.0),
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


def _excerpt(text: bytes, backend: Backend) -> str:
    """A provider's words for the log, without the secrets that it may repeat: an extra header often holds
    another one."""
    shown = text.decode("utf-8", "replace")
    provider = backend.provider
    for secret in (provider.credential, *(value for _, value in provider.extra_headers)):
        if secret:
            shown = shown.replace(secret, "***")
    return shown[:_SHOWN_CHARACTERS]
