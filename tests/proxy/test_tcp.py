from __future__ import annotations

import socket

from fastllm_proxy.tcp import set_options


def test_small_pieces_leave_at_once_and_silence_is_noticed() -> None:
    with socket.socket() as sock:
        set_options(sock)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        for option, value in (
            (socket.TCP_NODELAY, 1),
            (socket.TCP_KEEPIDLE, 30),
            (socket.TCP_KEEPINTVL, 10),
            (socket.TCP_KEEPCNT, 3),
            (socket.TCP_USER_TIMEOUT, 60_000),
        ):
            assert sock.getsockopt(socket.IPPROTO_TCP, option) == value
