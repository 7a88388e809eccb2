"""One connection to the fake engine: collects requests, plays the steps of their answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from typing import TYPE_CHECKING, Any, cast

from tests.fakes.answers import Answer, Answered, FaultKind, Pause, Send, Step, plan

if TYPE_CHECKING:
    from tests.fakes.engine import FakeEngine

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


def route_of(path: str) -> str:
    """A path without `/v1` and without a slash at its end: what answers are scripted for."""
    return path.removeprefix("/v1").rstrip("/") or "/"


class Received:
    """One request as it came. Times are the event loop's clock.

    `answered_at` is set when the whole answer has left, `aborted_at` when the peer closed before that;
    `settled` when either happened, or the answer broke off as scripted.
    """

    def __init__(self, connection: EngineConnection, head: bytes) -> None:
        lines = head.split(b"\r\n")
        method, target, _ = lines[0].decode("latin-1").split(" ", 2)
        self.connection = connection
        self.head = head
        self.method = method
        self.target = target
        self.path = target.partition("?")[0]
        self.headers = tuple(
            (name, value.strip()) for name, _, value in (line.partition(b":") for line in lines[1:])
        )
        self.body = b""
        self.received_at = asyncio.get_running_loop().time()
        self.answered_at: float | None = None
        self.aborted_at: float | None = None
        self.settled = asyncio.Event()

    def header(self, name: str) -> str | None:
        """The first header of that name, in any case."""
        wanted = name.lower().encode()
        return next((v.decode("latin-1") for n, v in self.headers if n.lower() == wanted), None)

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def route(self) -> str:
        return route_of(self.path)


class EngineConnection(asyncio.Protocol):
    """One accepted connection: collects requests, plays answers one after the other."""

    def __init__(self, engine: FakeEngine, number: int) -> None:
        self.number = number
        self.requests: list[Received] = []
        self.opened_at = asyncio.get_running_loop().time()
        self.closed_at: float | None = None
        self.closed = asyncio.Event()
        self.written = 0
        self._engine = engine
        self._arrived = bytearray()
        self._more = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._task: asyncio.Task[None] | None = None

    @property
    def sent(self) -> int:
        """Bytes that have left for the kernel."""
        waiting = 0 if self.closed_at is not None else self._transport.get_write_buffer_size()
        return self.written - waiting

    async def ended(self) -> None:
        """Waits until nothing of it runs. Raises what its serving raised."""
        await self.closed.wait()
        if self._task is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._engine.connections.append(self)  # only now: a TLS handshake that fails makes no connection
        # Writable: everything has left for the kernel. Over TLS asyncio would never call 0 bytes below 0.
        over_tls = self._transport.get_extra_info("ssl_object") is not None
        self._transport.set_write_buffer_limits(high=1 if over_tls else 0, low=0)
        if self._engine.accepting == "serve":
            self._task = asyncio.get_running_loop().create_task(self._serve())
        elif self._engine.accepting == "deaf":
            # Not at once: uvloop begins to read when this method has returned.
            asyncio.get_running_loop().call_soon(self._transport.pause_reading)
        elif self._engine.accepting != "stall":
            self.break_off(self._engine.accepting)

    def data_received(self, data: bytes) -> None:
        self._arrived += data
        self._more.set()

    def eof_received(self) -> None:
        self.connection_lost(None)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.closed_at is not None:
            return
        self.closed_at = asyncio.get_running_loop().time()
        self.closed.set()
        if self._task is not None:
            self._task.cancel()
        for request in self.requests:
            if not request.settled.is_set():
                request.aborted_at = self.closed_at
                request.settled.set()

    def write(self, data: bytes) -> None:
        """Sends bytes out of turn."""
        self.written += len(data)
        self._transport.write(data)

    def break_off(self, kind: FaultKind) -> None:
        """Ends the connection: `reset` by RST, `half_close` leaves the other direction open."""
        if kind == "reset":
            self._transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE
            )
            self._transport.abort()
        elif kind == "half_close":
            self._transport.write_eof()
        else:
            self._transport.close()

    async def _serve(self) -> None:
        while True:
            wait = self._engine.keep_alive_seconds
            try:
                async with asyncio.timeout(wait if self.requests else None):
                    head = await self._take_until(b"\r\n\r\n")
            except TimeoutError:
                self.break_off("close")
                return
            try:
                request = Received(self, head.removesuffix(b"\r\n\r\n"))
            except ValueError:
                self._transport.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
                self.break_off("close")
                return
            self.requests.append(request)
            self._engine.requests.append(request)
            answer = self._engine.answer_to(request)
            if not await self._answer(request, answer):
                return

    async def _answer(self, request: Received, answer: Answer) -> bool:
        """Whether the connection goes on."""
        unread = answer.early or (answer.fault is not None and answer.fault.at == "request")
        if unread:
            self._transport.pause_reading()
        else:
            await self._read_body(request)
        self._engine.note_arrival(request)
        reply = self._engine.reply_to(request, answer)
        steps = plan(
            answer,
            reply,
            head_only=request.method == "HEAD",
            keep_alive="close" not in (request.header("connection") or "").lower(),
        )
        goes_on = await self._play(steps, request)
        if unread and goes_on:
            self._transport.resume_reading()
            await self._read_body(request)
        return goes_on

    async def _play(self, steps: list[Step], request: Received) -> bool:
        for step in steps:
            if isinstance(step, Send):
                self.write(step.data)
                await self._writable.wait()
            elif isinstance(step, Pause):
                await asyncio.sleep(step.seconds)
            elif isinstance(step, Answered):
                await self._writable.wait()
                request.answered_at = asyncio.get_running_loop().time()
                request.settled.set()
            else:
                await self._writable.wait()
                # Goes on reading, for that is how the peer's closing is noticed.
                self._transport.resume_reading()
                if step.kind == "stall":
                    await asyncio.Event().wait()
                request.settled.set()
                self.break_off(step.kind)
                return False
        return True

    async def _read_body(self, request: Received) -> None:
        if (request.header("expect") or "").lower() == "100-continue":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if (request.header("transfer-encoding") or "").lower() == "chunked":
            while size := int((await self._take_until(b"\r\n")).split(b";")[0], 16):
                request.body += await self._take(size)
                await self._take(2)
            while await self._take_until(b"\r\n") != b"\r\n":
                pass
        else:
            request.body = await self._take(int(request.header("content-length") or 0))

    async def _take_until(self, end: bytes) -> bytes:
        while (found := self._arrived.find(end)) < 0:
            await self._wait_for_more()
        return await self._take(found + len(end))

    async def _take(self, size: int) -> bytes:
        while len(self._arrived) < size:
            await self._wait_for_more()
        taken = bytes(self._arrived[:size])
        del self._arrived[:size]
        return taken

    async def _wait_for_more(self) -> None:
        self._more.clear()
        await self._more.wait()
