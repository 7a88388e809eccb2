from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from fastllm_proxy.listen import CannotListen, open_sockets, url_of
from tests.fakes.ipv6 import speaks_ipv6


def test_a_free_port_on_every_address_of_the_host() -> None:
    with ExitStack() as closing:
        opened = [closing.enter_context(bound) for bound in open_sockets("localhost", 0)]
        assert len({bound.getsockname()[1] for bound in opened}) == 1
        assert opened[0].getsockname()[1] != 0


def test_accepted_connections_notice_a_dead_peer_and_do_not_delay() -> None:
    (bound,) = open_sockets("127.0.0.1", 0)
    with bound:
        bound.listen()
        bound.setblocking(True)
        with socket.create_connection(bound.getsockname()), bound.accept()[0] as accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            for option, value in (
                (socket.TCP_NODELAY, 1),
                (socket.TCP_KEEPIDLE, 30),
                (socket.TCP_KEEPINTVL, 10),
                (socket.TCP_KEEPCNT, 3),
                (socket.TCP_USER_TIMEOUT, 60_000),
            ):
                assert accepted.getsockopt(socket.IPPROTO_TCP, option) == value


def test_a_restart_can_take_the_port_at_once() -> None:
    (first,) = open_sockets("127.0.0.1", 0)
    port = first.getsockname()[1]
    with first:
        first.listen()
        first.setblocking(True)
        with socket.create_connection(first.getsockname()):
            first.accept()[0].close()  # closed here first: the port lingers in TIME_WAIT
    (second,) = open_sockets("127.0.0.1", port)
    second.close()


def test_a_port_in_use() -> None:
    (taken,) = open_sockets("127.0.0.1", 0)
    with taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(CannotListen, match=f"port {port} is in use by another process"):
            open_sockets("127.0.0.1", port)


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_a_host_that_is_not_here(host: str) -> None:
    with pytest.raises(CannotListen, match=f"cannot listen on {host}:0: "):
        open_sockets(host, 0)


def test_urls() -> None:
    (v4,) = open_sockets("127.0.0.1", 0)
    with v4:
        assert url_of(v4) == f"http://127.0.0.1:{v4.getsockname()[1]}"
        assert url_of(v4, tls=True) == f"https://127.0.0.1:{v4.getsockname()[1]}"
    if speaks_ipv6():
        (v6,) = open_sockets("::1", 0)
        with v6:
            assert url_of(v6) == f"http://[::1]:{v6.getsockname()[1]}"
