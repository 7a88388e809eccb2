"""The writing side of a client's connection: whether it takes what is written, and whoever waits for that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Outflow(asyncio.BaseProtocol):
    """`transport` is `None` before and after the connection; `writing_paused` while the client has more to
    take than the kernel holds for it. `on_pause` and `on_resume` are told when that changes."""

    __slots__ = ("_drainers", "on_pause", "on_resume", "transport", "writing_paused")

    def __init__(self) -> None:
        self._drainers: list[asyncio.Future[None]] = []
        self.transport: asyncio.Transport | None = None
        self.writing_paused = False
        self.on_pause: Callable[[], None] | None = None
        self.on_resume: Callable[[], None] | None = None

    def pause_writing(self) -> None:
        self.writing_paused = True
        if self.on_pause is not None:
            self.on_pause()

    def resume_writing(self) -> None:
        self.writing_paused = False
        for waiter in self._drainers:
            if not waiter.done():
                waiter.set_result(None)
        self._drainers.clear()
        if self.on_resume is not None:
            self.on_resume()

    async def drained(self) -> None:
        """Waits while `writing_paused`. Raises `ConnectionResetError` when the client has gone; whoever waits
        when it goes is cancelled with the connection's task."""
        if self.transport is None:
            raise ConnectionResetError("the client has gone")
        if self.writing_paused:
            waiter = asyncio.get_running_loop().create_future()
            self._drainers.append(waiter)
            await waiter
