"""The request body: read within limits of size, pace and memory, inflated if it came compressed.

Read whole, it is held until its exchange ends, because failover may send it again. Whoever can do with it
piece by piece holds none of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import msgspec

from fastllm_proxy import refusals
from fastllm_proxy.inflation import INFLATED_FROM_BYTES, Inflater, inflate

if TYPE_CHECKING:
    from fastllm_proxy.connection import ClientConnection
    from fastllm_proxy.heads import Request
    from fastllm_proxy.timers import Timer, TimerWheel

DISCARDED_BYTES: Final = 256 * 1024
"""An unread rest up to this size is read and thrown away rather than closing the connection over it."""


WHOLE_BYTES: Final = 64 * 1024
"""A body up to this length wakes its reader once, when it is complete."""


class BodyLimits(msgspec.Struct, frozen=True):
    """How slow a body may be: seconds without any byte, and bytes per second over `pace_seconds`."""

    pause_seconds: float = 30.0
    pace_seconds: float = 30.0
    bytes_per_second: float = 1024.0


class BodyBudget:
    """All request bodies that a worker holds at one time, in bytes."""

    __slots__ = ("_limit", "held")

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self.held = 0

    def take(self, size: int) -> None:
        """Raises `Refused` 503 when there is no room."""
        if self.held + size > self._limit:
            raise refusals.overloaded("this replica holds as many request bodies as it may; try again")
        self.held += size

    def give_back(self, size: int) -> None:
        self.held -= size


class RequestBody:
    """The body of one request. Not read, it costs nothing."""

    __slots__ = (
        "_budget",
        "_connection",
        "_continued",
        "_held",
        "_limits",
        "_request",
        "_timers",
    )

    def __init__(
        self,
        connection: ClientConnection,
        request: Request,
        limits: BodyLimits,
        budget: BodyBudget,
        timers: TimerWheel,
    ) -> None:
        self._connection = connection
        self._request = request
        self._limits = limits
        self._budget = budget
        self._timers = timers
        self._continued = False
        self._held = 0

    async def read(self, max_bytes: int) -> bytes | bytearray:
        """The whole body, decoded. Raises `Refused`: 413 when it exceeds `max_bytes` (as sent or inflated),
        408 when it comes too slowly, 415 and 400 for its encoding, 503 when the worker holds too much."""
        request = self._request
        encoded = request.encoding is not None and _is_coded(request.encoding)
        if request.complete:
            if request.received > max_bytes:
                raise refusals.request_too_large(max_bytes)
            data: bytes | bytearray = self._connection.take(request)
            self.hold(len(data))
        else:
            self._check_length(max_bytes)
            data = await self._collect(max_bytes)
        if not encoded:
            return data
        inflated = await inflate(data, max_bytes, self.hold)
        self._budget.give_back(len(data))
        self._held -= len(data)
        return inflated

    def pieces(self, max_bytes: int) -> AsyncGenerator[bytes, None]:
        """The body as it comes, decoded, in pieces of which none is empty or kept. Refuses as `read` does.
        Close it when you leave it early: `async with aclosing(body.pieces(…)) as pieces`."""
        encoding = self._request.encoding
        coded = encoding is not None and _is_coded(encoding)
        return self._inflated(max_bytes) if coded else self._sent(max_bytes)

    def release(self) -> None:
        """Takes what is held out of the worker's budget. Idempotent."""
        self._budget.give_back(self._held)
        self._held = 0

    def leaves_connection_usable(self) -> bool:
        """Whether the next request can follow on the connection: the body is read, or its rest is small and
        certain to come."""
        request = self._request
        if request.complete:
            return True
        if self._awaits_continue() or request.failure is not None or request.length is None:
            return False
        return request.length - request.received <= DISCARDED_BYTES

    def hold(self, size: int) -> None:
        """Counts what is kept of it, until `release`. Raises `Refused` 503 when the worker holds too much."""
        self._budget.take(size)
        self._held += size

    def _awaits_continue(self) -> bool:
        request = self._request
        return request.expects_continue and not self._continued and not request.received

    def _check_length(self, max_bytes: int) -> None:
        request = self._request
        if max(request.length or 0, request.received) > max_bytes:
            raise refusals.request_too_large(max_bytes)

    def _begin(self) -> _Pace:
        """Asks for the body, and watches that it comes."""
        if self._awaits_continue():
            self._connection.write_continue()
        self._continued = True
        return _Pace(self._connection, self._request, self._limits, self._timers)

    async def _collect(self, max_bytes: int) -> bytes | bytearray:
        request = self._request
        pace = self._begin()
        try:
            if request.length is not None and request.length <= WHOLE_BYTES:
                data = await self._next(request.length)
                if not request.complete:
                    raise request.failure or refusals.malformed()
                self.hold(len(data))
                return data
            collected = bytearray()
            while piece := await self._next():
                if len(collected) + len(piece) > max_bytes:
                    raise refusals.request_too_large(max_bytes)
                self.hold(len(piece))
                collected += piece
            return collected
        finally:
            pace.stop()

    async def _next(self, wanted: int = 1) -> bytes:
        """What has come since the last call, waiting for `wanted` bytes or for the end; `b""` at the end."""
        request = self._request
        while request.unread < wanted and not request.complete and request.failure is None:
            await self._connection.arrival(request, wanted)
        if request.failure is not None and not request.unread:  # what came before it is read first
            raise request.failure
        return self._connection.take(request)

    async def _sent(self, max_bytes: int) -> AsyncGenerator[bytes, None]:
        self._check_length(max_bytes)
        pace = None if self._request.complete else self._begin()
        size = 0
        try:
            while piece := await self._next():
                size += len(piece)
                if size > max_bytes:
                    raise refusals.request_too_large(max_bytes)
                yield piece
        finally:
            if pace is not None:
                pace.stop()

    async def _inflated(self, max_bytes: int) -> AsyncGenerator[bytes, None]:
        inflater = Inflater()
        size = 0
        async with aclosing(self._sent(max_bytes)) as pieces:
            async for data in pieces:
                view = memoryview(data)
                for start in range(0, len(view), INFLATED_FROM_BYTES):
                    inflater.put(view[start : start + INFLATED_FROM_BYTES])
                    while (piece := inflater.take()) is not None:
                        size += len(piece)
                        if size > max_bytes:
                            raise refusals.request_too_large(max_bytes)
                        if piece:
                            yield piece
                        await asyncio.sleep(0)
        inflater.finish()


class _Pace:
    """Watches that a body keeps coming, by one timer that looks now and then."""

    __slots__ = (
        "_connection",
        "_limits",
        "_request",
        "_seen",
        "_seen_at",
        "_timer",
        "_timers",
        "_window_at",
        "_window_seen",
    )

    def __init__(
        self, connection: ClientConnection, request: Request, limits: BodyLimits, timers: TimerWheel
    ) -> None:
        self._connection = connection
        self._request = request
        self._limits = limits
        self._timers = timers
        self._seen = self._window_seen = request.received
        self._seen_at = self._window_at = time.monotonic()
        self._timer: Timer | None = None
        self._again()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _again(self) -> None:
        self._timer = self._timers.after(self._limits.pause_seconds / 8, self._look)

    def _look(self) -> None:
        now = time.monotonic()
        seen = self._request.received
        if self._connection.held_back is not None:  # we do not read: a slow disk is not the client's fault
            self._seen_at = self._window_at = now
            self._window_seen = seen
        elif seen != self._seen:
            self._seen = seen
            self._seen_at = now
        elif now - self._seen_at >= self._limits.pause_seconds:
            self._drop("the request body paused for too long")
            return
        if now - self._window_at >= self._limits.pace_seconds:
            if seen - self._window_seen < self._limits.bytes_per_second * (now - self._window_at):
                self._drop("the request body came too slowly")
                return
            self._window_at = now
            self._window_seen = seen
        self._again()

    def _drop(self, message: str) -> None:
        self._connection.drop(self._request, refusals.request_timeout(message))


def _is_coded(value: bytes) -> bool:
    """Whether there is an encoding to undo; raises `Refused` 415 for one that cannot be."""
    encoding = value.lower()
    if encoding in (b"gzip", b"x-gzip", b"deflate"):
        return True
    if encoding in (b"", b"identity"):
        return False
    raise refusals.unsupported_encoding()
