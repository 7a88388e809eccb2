"""The listening sockets. `--workers` will hand each worker its own (SO_REUSEPORT), owned by a parent."""

from __future__ import annotations

import contextlib
import errno
import os
import socket

from fastllm_proxy import tcp

BACKLOG = 2048


class CannotListen(Exception):
    """Why not, in one line for a person."""


def open_sockets(host: str, port: int) -> list[socket.socket]:
    """A bound socket for each address of `host`, all on one port (`port` 0: a free one).

    Accepted connections inherit their options. Raises `CannotListen`.
    """
    opened: list[socket.socket] = []
    with contextlib.ExitStack() as undo:
        for family, address in _addresses(host, port):
            bound = undo.enter_context(socket.socket(family, socket.SOCK_STREAM))
            _set_options(bound)
            try:
                bound.bind((address[0], opened[0].getsockname()[1] if opened else port, *address[2:]))
            except OSError as error:
                raise CannotListen(f"cannot listen on {host}:{port}: {_reason(error, port)}") from error
            opened.append(bound)
        undo.pop_all()
    return opened


def url_of(bound: socket.socket, *, tls: bool = False) -> str:
    """The URL under which a bound socket is reached on its own address."""
    host, port = bound.getsockname()[:2]
    name = f"[{host}]" if ":" in host else host
    return f"{'https' if tls else 'http'}://{name}:{port}"


def _addresses(
    host: str, port: int
) -> list[tuple[socket.AddressFamily, tuple[str, int, int, int] | tuple[str, int]]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise CannotListen(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    return list(dict.fromkeys((family, address) for family, _, _, _, address in found))  # type: ignore[misc]


def _set_options(bound: socket.socket) -> None:
    bound.setblocking(False)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if bound.family == socket.AF_INET6:
        bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    tcp.set_options(bound)


def _reason(error: OSError, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} is in use by another process (choose another with --port)"
    if error.errno == errno.EACCES:
        return f"port {port} needs a privilege that this process does not have"
    return os.strerror(error.errno) if error.errno else str(error)
