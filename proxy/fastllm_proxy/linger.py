"""The end of a connection whose last answer is on its way: see `ClientConnection.close_after_writing`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastllm_proxy.heads import ConnectionLimits
    from fastllm_proxy.timers import Timer, TimerWheel


class Linger:
    """Aborts the transport when nothing has come for a while, or after a longer while in any case.

    `discarded` counts what came and was thrown away since it last looked.
    """

    __slots__ = ("_limits", "_timer", "_timers", "_transport", "_waits", "discarded")

    def __init__(self, transport: asyncio.Transport, timers: TimerWheel, limits: ConnectionLimits) -> None:
        self._transport = transport
        self._timers = timers
        self._limits = limits
        self._waits = max(1, round(limits.linger_seconds / limits.linger_pause_seconds))
        self._timer: Timer | None = None
        self.discarded = 0
        self._wait()

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        self._waits -= 1
        self.discarded = 0
        self._timer = self._timers.after(self._limits.linger_pause_seconds, self._over)

    def _over(self) -> None:
        self._timer = None
        if self.discarded and self._waits > 0:
            self._wait()
        else:
            self._transport.abort()
