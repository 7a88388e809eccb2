"""How a peer that is gone without a word is noticed, on both sides of the proxy alike."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fastllm_proxy.timers import Timer, TimerWheel

KEEPALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))
"""Seconds of silence before the first probe, seconds between probes, and how many go unanswered."""

DEAD_AFTER_MILLISECONDS = 60_000
"""TCP_USER_TIMEOUT: 30 + 3 x 10 s, so that sent and received silence are given up alike."""


def set_options(sock: socket.socket) -> None:
    """No delay for small pieces; keep-alive probes. What a listening socket accepts inherits them."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE:
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_AFTER_MILLISECONDS)


LOOK_SECONDS: Final = 0.5
_CLOSED: Final = (7, 8)
"""Of Linux's connection states: the connection is gone, and the peer has ended its side of it."""


class PeerWatch:
    """Aborts a transport that is not being read from once its peer has left: the event loop says nothing of
    that until somebody reads. To be cancelled when reading goes on."""

    __slots__ = ("_timer", "_timers", "_transport")

    def __init__(self, transport: asyncio.Transport, timers: TimerWheel) -> None:
        self._transport = transport
        self._timers = timers
        self._timer: Timer = timers.after(LOOK_SECONDS, self._look)

    def cancel(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        sock: socket.socket = self._transport.get_extra_info("socket")
        if sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] in _CLOSED:
            self._transport.abort()
        else:
            self._timer = self._timers.after(LOOK_SECONDS, self._look)
