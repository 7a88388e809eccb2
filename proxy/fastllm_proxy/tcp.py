"""How a peer that is gone without a word is noticed, on both sides of the proxy alike."""

from __future__ import annotations

import socket

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
