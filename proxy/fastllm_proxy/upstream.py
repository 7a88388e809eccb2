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
from fastllm_proxy.tls_transport import TlsTransport
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
    pending while there are any; `_lookup` is the question for addresses that is being asked, if any;
    `_failed` are the addresses that could not be connected to when they were last tried.

    Borrowed connections are their holders'; they come back by `release`.
    """

    __slots__ = (
        "_addresses",
        "_buffer",
        "_closed",
        "_connect_seconds",
        "_failed",
        "_host",
        "_idle",
        "_idle_seconds",
        "_lookup",
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
        self._lookup: asyncio.Task[Sequence[Endpoint] | ConnectFailed] | None = None
        self._failed: set[Endpoint] = set()
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
        allowed = self._allowed(await self._endpoints())
        self._failed.intersection_update(allowed)
        allowed.sort(key=self._failed.__contains__)
        for left in range(len(allowed), 1, -1):
            try:
                async with asyncio.timeout((deadline - self._loop.time()) / left):
                    return await self._dial(allowed[-left])
            except (ConnectFailed, TimeoutError):
                self._failed.add(allowed[-left])
        connection = await self._dial(allowed[-1])
        self._failed.discard(allowed[-1])
        return connection

    async def _endpoints(self) -> Sequence[Endpoint]:
        """What the host's name stands for. Raises `ConnectFailed`.

        All who wait share one question: libuv has two threads for names, and one whose server is silent must
        not take both. It goes on when they have given up, and whoever comes then joins it.
        """
        if self._lookup is None:
            self._lookup = self._loop.create_task(self._look_up())
        found = await asyncio.shield(self._lookup)
        if isinstance(found, ConnectFailed):
            raise ConnectFailed(found.cause, found.detail)
        return found

    async def _look_up(self) -> Sequence[Endpoint] | ConnectFailed:
        """Returns its failure, which nobody may be there to take."""
        try:
            return await self._resolve(self._host, self._port)
        except (OSError, UnicodeError) as error:
            return ConnectFailed("name", str(error))
        finally:
            self._lookup = None

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
        dialled: socket.socket | None = None
        try:
            dialled = socket.socket(family, socket.SOCK_STREAM)
            dialled.setblocking(False)
            tcp.set_options(dialled)
            await self._loop.sock_connect(dialled, address)
            connection = await self._open(dialled)
        except BaseException as error:
            if dialled is not None:
                dialled.close()
            if isinstance(error, OSError) and not isinstance(error, TimeoutError):
                raise ConnectFailed("refused", str(error)) from error
            raise
        return connection

    async def _open(self, dialled: socket.socket) -> UpstreamConnection:
        connection = UpstreamConnection(self, self._loop, self._timers, self._buffer)
        if self._tls is None:
            await self._hand_over(connection, connection, dialled)
            return connection
        try:
            layer = TlsTransport(self._loop, self._tls, self._server_name, connection)
        except ValueError as error:
            raise ConnectFailed("tls", str(error)) from error
        await self._hand_over(connection, layer, dialled)
        try:
            await layer.ready
        except OSError as error:
            raise ConnectFailed("tls", str(error)) from error
        finally:
            if not connection.connected:
                layer.abort()
        return connection

    async def _hand_over(
        self, connection: UpstreamConnection, protocol: asyncio.BaseProtocol, dialled: socket.socket
    ) -> None:
        """Makes the descriptor the event loop's alone. If the peer resets at once, uvloop closes it without
        telling the socket, which would close it again when it goes: by then it may be another's."""
        watched = select.poll()
        watched.register(dialled, select.POLLIN)
        connection.stirs = watched.poll
        await self._loop.create_connection(lambda: protocol, sock=dialled)
        dialled.detach()


async def resolve_by_system(host: str, port: int) -> list[Endpoint]:
    """What the system's resolver says, in its order."""
    found = await asyncio.get_running_loop().getaddrinfo(
        host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
    )
    return [(family, tuple(address)) for family, _, _, _, address in found]


def read_buffer() -> memoryview:
    """What connections read into; see `UpstreamConnection`."""
    return memoryview(bytearray(READ_BYTES))
