"""Whether this machine has the loopback address of IPv6: containers often do not."""

from __future__ import annotations

import socket


def speaks_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True
