"""What tests of the upstream client share: pools towards an engine, requests as bytes, readers."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest

from fastllm_proxy.timers import TimerWheel
from fastllm_proxy.upstream import UpstreamConnection, UpstreamPool
from fastllm_shared.addresses import AddressPolicy

CHAT = "/v1/chat/completions"
BODY = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
STREAM = b'{"model":"m","stream":true,"messages":[]}'


@contextmanager
def no_answer() -> Iterator[int]:
    """A port where connections are neither accepted nor refused: its queue is full."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]
        for one in waiting:
            one.close()


def wheel() -> TimerWheel:
    """A wheel with ticks of 5 ms."""
    return TimerWheel(asyncio.get_running_loop(), 0.005)


def pool_to(
    port: int,
    *,
    host: str = "127.0.0.1",
    timers: TimerWheel | None = None,
    tls: ssl.SSLContext | None = None,
    server_name: str | None = None,
    idle_seconds: float = 30.0,
    connect_seconds: float = 5.0,
) -> UpstreamPool:
    return UpstreamPool(
        host=host,
        port=port,
        tls=tls,
        server_name=server_name,
        addresses=AddressPolicy(),
        timers=timers or wheel(),
        idle_seconds=idle_seconds,
        connect_seconds=connect_seconds,
    )


def request(length: int, *, method: str = "POST", path: str = CHAT) -> bytes:
    """A request's head."""
    return f"{method} {path} HTTP/1.1\r\nhost: engine\r\ncontent-length: {length}\r\n\r\n".encode()


def ask(
    connection: UpstreamConnection, body: bytes = BODY, *, method: str = "POST", path: str = CHAT
) -> None:
    connection.send(request(len(body), method=method, path=path), body)


async def read_all(connection: UpstreamConnection, idle_seconds: float = 5.0) -> bytes:
    body = b""
    while piece := await connection.read(idle_seconds):
        body += piece
    return body


async def read_by_pieces(connection: UpstreamConnection, idle_seconds: float = 5.0) -> bytes:
    await connection.head(5)
    return await read_all(connection, idle_seconds)


async def read_by_pipe(connection: UpstreamConnection, idle_seconds: float = 5.0) -> bytes:
    await connection.head(5)
    pieces: list[bytes] = []
    await connection.pipe(pieces.append, idle_seconds)
    return b"".join(pieces)


Reading = Callable[..., Awaitable[bytes]]
both_ways = pytest.mark.parametrize("reading", [read_by_pieces, read_by_pipe])
