"""The pool of connections to one backend: the only place of the request path that opens sockets.

What a response is: `response_parser`; one connection: `upstream_connection`.
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence

from fastllm_proxy import tcp
from fastllm_proxy.errors import ConnectFailed, UpstreamTimeout
from fastllm_proxy.response_parser import ResponseHead
from fastllm_proxy.timers import Timer, TimerWheel
from fastllm_proxy.upstream_connection import UpstreamConnection
from fastllm_shared.addresses import AddressPolicy

__all__ = ("CONNECT_SECONDS", "ResponseHead", "UpstreamConnection", "UpstreamPool", "read_buffer")

READ_BYTES = 65_536
"""The most that one read brings, and so the most that a client who has just stalled may still be owed."""

CONNECT_SECONDS = 5.0
"""For name, connection and TLS together."""

Endpoint = tuple[socket.AddressFamily, tuple[str | int | bytes, ...]]
"""A resolved address as sockets take it; its first member is the IP address as text."""

Resolve = Callable[[str, int], Awaitable[Sequence[Endpoint]]]
"""Host and port to addresses, best first. Raises `OSError` or `UnicodeError` for what is no name."""


class UpstreamPool:
    """State: `_idle` holds the connections that may be taken, least recently used first; `_sweeper` is
    pending while there are any.

    Borrowed connections are their holders'; they come back by `release`.
    """

    __slots__ = (
        "_addresses",
        "_buffer",
        "_closed",
        "_connect_seconds",
        "_host",
        "_idle",
        "_idle_seconds",
        "_loop",
        "_port",
        "_resolve",
        "_server_name",
        "_sweeper",
        "_timers",
        "_tls",
    )

    def __init__(
        self,
        *,
        host: str,
        port: int,
        tls: ssl.SSLContext | None,
        server_name: str | None,
        addresses: AddressPolicy,
        timers: TimerWheel,
        idle_seconds: float = 4.0,
        connect_seconds: float = CONNECT_SECONDS,
        buffer: memoryview | None = None,
        resolve: Resolve | None = None,
    ) -> None:
        """Needs a running event loop. `server_name` is what the certificate must name, if not `host`;
        `idle_seconds` stays under the 5 s after which common engines close; `buffer` comes from
        `read_buffer`, one for all pools of a process."""
        self._host = host
        self._port = port
        self._tls = tls
        self._server_name = server_name or host
        self._addresses = addresses
        self._timers = timers
        self._idle_seconds = idle_seconds
        self._connect_seconds = connect_seconds
        self._loop = asyncio.get_running_loop()
        self._buffer = buffer or read_buffer()
        self._resolve = resolve or resolve_by_system
        self._idle: dict[UpstreamConnection, None] = {}
        self._sweeper: Timer | None = None
        self._closed = False

    @property
    def idle(self) -> int:
        return len(self._idle)

    def take(self) -> UpstreamConnection | None:
        """The most recently used idle connection that is still open and silent.

        What came since the event loop last looked was asked for by nobody: it would be read as the answer
        to the next request. One system call, 0.4 µs, tells.
        """
        while self._idle:
            connection, _ = self._idle.popitem()
            if connection.stirs(0):
                connection.drop()
                continue
            connection.held = True
            connection.reused = True
            return connection
        return None

    async def connect(self) -> UpstreamConnection:
        """A new connection, TLS included. Raises `ConnectFailed` or `UpstreamTimeout`."""
        try:
            async with asyncio.timeout(self._connect_seconds):
                return await self._connect_any()
        except TimeoutError:
            raise UpstreamTimeout("connect", self._connect_seconds) from None

    async def close(self) -> None:
        """Closes what is idle; what is borrowed closes when it comes back."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        while self._idle:
            self._idle.popitem()[0].drop()

    # Called by connections.

    def returned(self, connection: UpstreamConnection) -> bool:
        if self._closed:
            return False
        if self._sweeper is None:
            self._sweeper = self._timers.after(self._idle_seconds, self._sweep)
        connection.idle_since = self._timers.now
        self._idle[connection] = None
        return True

    def lost(self, connection: UpstreamConnection) -> None:
        self._idle.pop(connection, None)

    def _sweep(self) -> None:
        self._sweeper = None
        now = self._timers.now
        for connection in tuple(self._idle):
            left = connection.idle_since + self._idle_seconds - now
            if left > 0:
                self._sweeper = self._timers.after(left, self._sweep)
                return
            del self._idle[connection]
            connection.drop()

    # Connecting.

    async def _connect_any(self) -> UpstreamConnection:
        """Tries each allowed address in turn; an unanswered one gets its share of the time that is left."""
        deadline = self._loop.time() + self._connect_seconds
        try:
            found = await self._resolve(self._host, self._port)
        except (OSError, UnicodeError) as error:
            raise ConnectFailed("name", str(error)) from error
        *others, last = self._allowed(found)
        for tried, endpoint in enumerate(others):
            share = (deadline - self._loop.time()) / (len(others) + 1 - tried)
            try:
                async with asyncio.timeout(share):
                    return await self._dial(endpoint)
            except (ConnectFailed, TimeoutError):
                continue
        return await self._dial(last)

    def _allowed(self, endpoints: Sequence[Endpoint]) -> list[Endpoint]:
        """Those that may be dialled, at least one. Raises `ConnectFailed`."""
        problem = "the name has no address"
        allowed = []
        for endpoint in endpoints:
            refused = self._addresses.problem(str(endpoint[1][0]), self._port)
            if refused is None:
                allowed.append(endpoint)
            else:
                problem = refused
        if not allowed:
            raise ConnectFailed("address", problem)
        return allowed

    async def _dial(self, endpoint: Endpoint) -> UpstreamConnection:
        """Dials the very address that was checked: nothing is resolved again."""
        family, address = endpoint
        dialled = socket.socket(family, socket.SOCK_STREAM)
        try:
            dialled.setblocking(False)
            tcp.set_options(dialled)
            await self._loop.sock_connect(dialled, address)
            _, connection = await self._loop.create_connection(
                lambda: UpstreamConnection(self, self._loop, self._timers, self._buffer),
                sock=dialled,
                ssl=self._tls,
                server_hostname=self._server_name if self._tls is not None else None,
            )
        except BaseException as error:
            dialled.close()
            if isinstance(error, ssl.SSLError):
                raise ConnectFailed("tls", str(error)) from error
            if isinstance(error, OSError) and not isinstance(error, TimeoutError):
                raise ConnectFailed("refused", str(error)) from error
            raise
        watched = select.poll()
        watched.register(dialled, select.POLLIN)
        connection.stirs = watched.poll
        return connection


async def resolve_by_system(host: str, port: int) -> list[Endpoint]:
    """What the system's resolver says, in its order."""
    found = await asyncio.get_running_loop().getaddrinfo(
        host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
    )
    return [(family, tuple(address)) for family, _, _, _, address in found]


def read_buffer() -> memoryview:
    """What connections read into; see `UpstreamConnection`."""
    return memoryview(bytearray(READ_BYTES))
