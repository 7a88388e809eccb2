from __future__ import annotations

import asyncio
import resource
import socket
import ssl
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from fastllm_proxy.errors import ConnectFailed, UpstreamTimeout
from fastllm_proxy.upstream import Endpoint, UpstreamConnection, UpstreamPool
from fastllm_shared.addresses import AddressPolicy
from tests.fakes.certificates import Authority
from tests.fakes.engine import FakeEngine
from tests.fakes.upstreams import ask, no_answer, pool_to, read_all, wheel


@pytest.fixture
def deaf_port() -> Iterator[int]:
    with no_answer() as port:
        yield port


class Resolver:
    """Answers every question with the same addresses; counts the questions."""

    def __init__(self, *addresses: tuple[str, int]) -> None:
        self.asked: list[str] = []
        self._endpoints: list[Endpoint] = [(socket.AF_INET, address) for address in addresses]

    async def __call__(self, host: str, port: int) -> Sequence[Endpoint]:
        self.asked.append(host)
        return self._endpoints


def resolved_pool(
    resolver: Resolver, *, connect_seconds: float = 5.0, policy: AddressPolicy | None = None
) -> UpstreamPool:
    return UpstreamPool(
        host="engine.example",
        port=1,
        tls=None,
        server_name=None,
        addresses=policy or AddressPolicy(),
        timers=wheel(),
        connect_seconds=connect_seconds,
        resolve=resolver,
    )


async def used(pool: UpstreamPool, connection: UpstreamConnection | None = None) -> UpstreamConnection:
    """A connection that has carried a request, not yet released."""
    connection = connection or await pool.connect()
    ask(connection)
    await connection.head(5)
    assert await read_all(connection)
    return connection


# Keeping connections.


async def test_the_most_recently_used_is_taken_first(engine: FakeEngine) -> None:
    pool = pool_to(engine.port)
    first, second, third = [await used(pool) for _ in range(3)]
    for connection in (second, first, third):
        connection.release()
    assert pool.idle == 3
    assert [pool.take(), pool.take(), pool.take(), pool.take()] == [third, first, second, None]
    for connection in (first, second, third):
        connection.abort()


async def test_idle_ones_are_closed_before_the_engine_does_it(engine: FakeEngine) -> None:
    pool = pool_to(engine.port, idle_seconds=0.3)
    first, second = await used(pool), await used(pool)
    first.release()
    await asyncio.sleep(0.2)
    second.release()
    await asyncio.wait_for(engine.connections[0].closed.wait(), 5)
    opened = [connection.closed_at for connection in engine.connections]
    assert opened[0] is not None
    assert (opened[1], pool.idle) == (None, 1)
    await asyncio.wait_for(engine.connections[1].closed.wait(), 5)
    assert pool.idle == 0


async def test_use_puts_the_closing_off(engine: FakeEngine) -> None:
    pool = pool_to(engine.port, idle_seconds=0.5)
    connection = await used(pool)
    for _ in range(6):
        connection.release()
        await asyncio.sleep(0.1)
        assert pool.take() is connection
        await used(pool, connection)
    assert len(engine.connections) == 1
    connection.abort()


async def test_one_that_the_engine_closed_is_not_taken() -> None:
    async with FakeEngine.start(keep_alive_seconds=0.01) as engine:
        pool = pool_to(engine.port)
        (await used(pool)).release()
        assert pool.idle == 1
        await engine.connections[0].closed.wait()
        await asyncio.sleep(0.02)
        assert pool.idle == 0
        assert pool.take() is None


async def test_close_closes_idle_ones_now_and_borrowed_ones_when_they_come_back(engine: FakeEngine) -> None:
    pool = pool_to(engine.port)
    idle, borrowed = await used(pool), await used(pool)
    idle.release()
    await pool.close()
    await asyncio.wait_for(engine.connections[0].closed.wait(), 1)
    assert engine.open_connections == 1
    await used(pool, borrowed)
    borrowed.release()
    await asyncio.wait_for(engine.connections[1].closed.wait(), 1)
    assert pool.idle == 0


async def test_nothing_stays_on_the_wheel_when_all_is_closed(engine: FakeEngine) -> None:
    timers = wheel()
    pool = pool_to(engine.port, timers=timers)
    (await used(pool)).release()
    (await used(pool)).abort()
    await pool.close()
    await asyncio.sleep(0.05)
    assert timers._handle is None


# Connecting.


async def test_the_sockets_options(engine: FakeEngine) -> None:
    connection = await pool_to(engine.port).connect()
    assert connection._transport is not None
    dialled = connection._transport.get_extra_info("socket")
    tcp = socket.IPPROTO_TCP
    assert dialled.getsockopt(tcp, socket.TCP_NODELAY) == 1
    assert dialled.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert dialled.getsockopt(tcp, socket.TCP_KEEPIDLE) == 30
    assert dialled.getsockopt(tcp, socket.TCP_KEEPINTVL) == 10
    assert dialled.getsockopt(tcp, socket.TCP_KEEPCNT) == 3
    assert dialled.getsockopt(tcp, socket.TCP_USER_TIMEOUT) == 60_000
    connection.abort()


async def test_a_name_is_resolved_by_the_system(engine: FakeEngine) -> None:
    connection = await pool_to(engine.port, host="localhost").connect()
    await used(pool_to(engine.port), connection)
    connection.abort()


async def test_nobody_listens() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectFailed) as caught:
            await pool_to(unused.getsockname()[1]).connect()
    assert caught.value.cause == "refused"


@pytest.mark.parametrize("host", ["x" * 64, "", "not a name", "a..b"])
async def test_what_is_no_name(host: str) -> None:
    with pytest.raises(ConnectFailed) as caught:
        await pool_to(1, host=host).connect()
    assert caught.value.cause in ("name", "refused")


async def test_an_address_that_does_not_answer(deaf_port: int) -> None:
    started = asyncio.get_running_loop().time()
    with pytest.raises(UpstreamTimeout) as caught:
        await pool_to(deaf_port, connect_seconds=0.1).connect()
    assert caught.value.phase == "connect"
    assert 0.09 <= asyncio.get_running_loop().time() - started < 1


async def test_every_address_is_tried_within_the_time(engine: FakeEngine, deaf_port: int) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        resolver = Resolver(("127.0.0.1", deaf_port), unused.getsockname(), ("127.0.0.1", engine.port))
        connection = await resolved_pool(resolver, connect_seconds=1.0).connect()
    assert engine.open_connections == 1
    connection.abort()


async def test_the_address_that_was_checked_is_the_one_that_is_dialled(engine: FakeEngine) -> None:
    resolver = Resolver(("127.0.0.1", engine.port))
    pool = resolved_pool(resolver)
    for _ in range(2):
        (await pool.connect()).abort()
    assert resolver.asked == ["engine.example"] * 2


async def test_addresses_that_may_not_be_dialled(engine: FakeEngine) -> None:
    policy = AddressPolicy(allow_loopback=False)
    with pytest.raises(ConnectFailed) as caught:
        await resolved_pool(Resolver(("127.0.0.1", engine.port)), policy=policy).connect()
    assert caught.value.cause == "address"
    metadata = Resolver(("169.254.169.254", 80), ("127.0.0.1", engine.port))
    connection = await resolved_pool(metadata).connect()
    assert len(engine.connections) == 1
    connection.abort()
    with pytest.raises(ConnectFailed) as caught:
        await resolved_pool(Resolver()).connect()
    assert caught.value.cause == "address"


async def test_a_process_without_descriptors_left_cannot_connect(engine: FakeEngine) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    pool = pool_to(engine.port)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))
    try:
        with pytest.raises(ConnectFailed) as caught:
            await pool.connect()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert caught.value.cause == "refused"
    assert "Too many open files" in str(caught.value)


async def test_one_that_speaks_or_ends_between_two_turns_of_the_loop_is_not_taken() -> None:
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        for ending in (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", b""):
            pool = pool_to(listener.getsockname()[1])
            connecting = asyncio.create_task(pool.connect())
            accepted, _ = await loop.sock_accept(listener)
            connection = await connecting
            ask(connection)
            accepted.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
            await connection.head(5)
            await read_all(connection)
            connection.release()
            assert pool.idle == 1
            if ending:
                accepted.sendall(ending)
            else:
                accepted.shutdown(socket.SHUT_WR)
            assert pool.take() is None  # the event loop has not had a turn since
            assert pool.idle == 0
            accepted.close()


async def test_who_asks_while_a_name_is_asked_for_shares_the_answer(engine: FakeEngine) -> None:
    resolver = Resolver(("127.0.0.1", engine.port))
    pool = resolved_pool(resolver)
    connections = await asyncio.gather(*(pool.connect() for _ in range(10)))
    assert resolver.asked == ["engine.example"]
    (await pool.connect()).abort()
    assert len(resolver.asked) == 2
    for connection in connections:
        connection.abort()


async def test_cancelled_while_connecting(deaf_port: int) -> None:
    connecting = asyncio.create_task(pool_to(deaf_port).connect())
    await asyncio.sleep(0.02)
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting


# TLS.


def trusting(pem: str | None) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=pem)


async def test_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with FakeEngine.start(tls=authority.server_context("localhost")) as engine:
        pool = pool_to(engine.port, host="localhost", tls=trusting(authority.pem))
        connection = await used(pool)
        connection.release()
        assert pool.take() is connection
        await used(pool, connection)
        connection.abort()
        await asyncio.wait_for(engine.connections[0].closed.wait(), 1)


async def test_tls_under_another_name(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = trusting(authority.pem)
    async with FakeEngine.start(tls=authority.server_context("engine.internal")) as engine:
        with pytest.raises(ConnectFailed) as caught:
            await pool_to(engine.port, host="localhost", tls=tls).connect()
        assert caught.value.cause == "tls"
        connection = await pool_to(engine.port, tls=tls, server_name="engine.internal").connect()
        await used(pool_to(engine.port), connection)
        connection.abort()


async def test_tls_that_nobody_vouches_for(tmp_path: Path) -> None:
    async with FakeEngine.start(tls=Authority(tmp_path).server_context("localhost")) as engine:
        with pytest.raises(ConnectFailed) as caught:
            await pool_to(engine.port, host="localhost", tls=trusting(None)).connect()
    assert caught.value.cause == "tls"


async def test_tls_towards_a_server_that_has_none(engine: FakeEngine) -> None:
    engine.accepting = "close"
    with pytest.raises(ConnectFailed) as caught:
        await pool_to(engine.port, tls=trusting(None)).connect()
    assert caught.value.cause in ("tls", "refused")
    engine.accepting = "serve"  # it waits for the end of a head, which a handshake does not have
    with pytest.raises(UpstreamTimeout):
        await pool_to(engine.port, tls=trusting(None), connect_seconds=0.05).connect()
