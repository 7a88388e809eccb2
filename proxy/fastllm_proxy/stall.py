"""A client that takes nothing of what there is for it.

While a client is slow its backend is held back, and then silence is no timeout: without a bound, one that
never reads would hold an engine for ever.
"""

from __future__ import annotations

import asyncio
import socket
from array import array
from collections.abc import Callable
from fcntl import ioctl
from termios import TIOCOUTQ
from typing import TYPE_CHECKING, Final

from fastllm_proxy.tcp import DEAD_AFTER_MILLISECONDS

if TYPE_CHECKING:
    from fastllm_proxy.timers import Timer, TimerWheel

_LOOKS: Final = 8
"""Looks within the bound; the first comes before the kernel would lose patience."""


class StallWatch:
    """Watches a client from when it is slow until `end`; calls `on_stall` when not a byte has left to it for
    `seconds`, or up to an eighth longer.

    The kernel's own bound, meant for peers that are dead, holds for a closed window as well, though every
    probe of it is answered: it is set aside for as long as this watches.
    """

    __slots__ = (
        "_idle_looks",
        "_on_stall",
        "_patient",
        "_seconds",
        "_timer",
        "_timers",
        "_transport",
        "_waiting",
    )

    def __init__(
        self, transport: asyncio.Transport, timers: TimerWheel, seconds: float, on_stall: Callable[[], None]
    ) -> None:
        self._transport = transport
        self._timers = timers
        self._seconds = seconds
        self._on_stall = on_stall
        self._patient = False
        self._idle_looks = 0
        self._waiting: int | None = None
        self._timer: Timer = timers.after(seconds / _LOOKS, self._look)

    def end(self) -> None:
        """The client takes again, or all of it ends."""
        self._timer.cancel()
        if self._patient and not self._transport.is_closing():
            self._bound_kernel(DEAD_AFTER_MILLISECONDS)

    def _look(self) -> None:
        if self._transport.is_closing():
            return
        if not self._patient:
            self._patient = True
            self._bound_kernel(round(self._seconds * 2000))
        waiting = untaken(self._transport)
        if waiting != self._waiting:
            self._idle_looks = 0
            self._waiting = waiting
        else:
            self._idle_looks += 1
        if self._idle_looks >= _LOOKS:
            self._on_stall()
        else:
            self._timer = self._timers.after(self._seconds / _LOOKS, self._look)

    def _bound_kernel(self, milliseconds: int) -> None:
        sock: socket.socket = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)


def untaken(transport: asyncio.Transport) -> int:
    """Bytes written to a transport that its peer has not acknowledged: those that wait here and those that
    the kernel has."""
    sock: socket.socket = transport.get_extra_info("socket")
    queued = array("i", [0])
    ioctl(sock.fileno(), TIOCOUTQ, queued)
    return transport.get_write_buffer_size() + queued[0]
