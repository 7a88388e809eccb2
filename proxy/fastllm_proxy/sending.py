"""A request on its way to a backend: the sending half of a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal

from fastllm_proxy.errors import ConnectionReset, UpstreamError
from fastllm_proxy.response_parser import ResponseParser
from fastllm_proxy.timers import TimerWheel
from fastllm_proxy.waiting import Waiting

JOINED_BYTES = 65_536
"""Up to here head and body are copied into one write; beyond, the body is handed over as it is."""

UNSENT_BYTES = 65_536
"""`send_from` waits when more than this has not left: asyncio's own mark, which it sets higher over TLS."""

_HEAD_INITIAL = ord("H")  # no other method begins so

Body = bytes | bytearray | memoryview
Phase = Literal["connect", "send", "head", "first_byte", "idle"]
NextPiece = Callable[[], Awaitable[Body]]
"""The next piece of a request's body; an empty one at its end."""


class Sending(Waiting):
    """State that both halves share, beside that of waiting:

    `_transport` `None` before it is connected and once it is closed
    `_parser`    what has come of the response
    `_reading`   the response's head has been handed out: only body bytes wake a waiter
    `_phase`     what whoever waits is waiting for, as long as no head has come
    `_failure`   why this response cannot be completed; raised after what came before it
    `_unsent`    a part of the request has not been handed to the transport
    `_full`      the transport wants nothing more at present
    `_unread`    bytes that have come and that nobody has asked for
    """

    __slots__ = ("_failure", "_full", "_parser", "_phase", "_reading", "_transport", "_unread", "_unsent")

    def __init__(self, loop: asyncio.AbstractEventLoop, timers: TimerWheel) -> None:
        super().__init__(loop, timers)
        self._parser = ResponseParser()
        self._transport: asyncio.Transport | None = None
        self._phase: Phase = "head"
        self._failure: UpstreamError | None = None
        self._reading = False
        self._unsent = False
        self._full = False
        self._unread = 0

    def send(self, head: bytes, body: Body = b"", *more: Body) -> None:
        """Sends a request as one write: `head` with its blank line, then its body, in parts if it is spliced.

        That a connection has gone meanwhile shows in `head`.
        """
        transport = self._begin(head)
        if transport is None:
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

    async def send_from(self, head: bytes, next_piece: NextPiece, timeout_seconds: float) -> None:
        """Sends a request whose body is not all in memory: at most one piece beyond `UNSENT_BYTES` is.

        Each wait for the backend to take bytes may last `timeout_seconds`. Returns early, the rest unsent,
        when the response's head has come or the connection has failed, that time-out included: `head` then
        tells, and the connection is not used again. `next_piece` is never cut short, so what comes
        during it shows after it; what it raises is raised, and the holder releases the connection as ever.
        """
        transport = self._begin(head)
        if transport is None:
            return
        self._unsent = True
        transport.write(head)
        while True:
            piece = await next_piece()
            if self._failure is not None or self._parser.head is not None:
                return
            if not piece:
                self._unsent = False
                return
            transport.write(piece)
            if self._full:
                self._phase = "send"
                try:
                    await self._wait(timeout_seconds)
                except UpstreamError:
                    return
                self._reading = False  # the head may have ended the wait, but is handed out by `head`

    # What the event loop calls.

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        if self._phase == "send":
            waiter, self._waiter = self._waiter, None
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

    # Inside.

    def _begin(self, head: bytes) -> asyncio.Transport | None:
        """Prepares for the response to a request; where it can be written, unless the connection is gone."""
        self._parser.begin(bodyless=head[0] == _HEAD_INITIAL)
        self._reading = False
        self._unread = 0
        if self._transport is None:
            self._failure = ConnectionReset("closed while idle", unsent=True)
        return self._transport
