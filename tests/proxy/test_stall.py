"""A client that takes nothing is told from one that takes little."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

from fastllm_proxy.stall import StallWatch, untaken
from fastllm_proxy.tcp import DEAD_AFTER_MILLISECONDS
from fastllm_proxy.timers import TimerWheel

MUCH = b"x" * 20_000_000


@contextlib.asynccontextmanager
async def full() -> AsyncIterator[tuple[asyncio.Transport, socket.socket]]:
    """A transport with more than its peer takes, and the peer's socket."""
    loop = asyncio.get_running_loop()
    ours, peer = socket.socket(), socket.socket()
    with socket.create_server(("127.0.0.1", 0)) as listener, ours, peer:
        ours.setblocking(False)
        await loop.sock_connect(ours, listener.getsockname())
        peer.close()
        peer, _ = listener.accept()
        peer.setblocking(False)
        transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
        try:
            transport.write(MUCH)
            yield transport, peer
        finally:
            transport.abort()
            peer.close()
            await asyncio.sleep(0)


def user_timeout(transport: asyncio.Transport) -> int:
    sock: socket.socket = transport.get_extra_info("socket")
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)


async def test_a_client_that_takes_nothing_is_given_up_once() -> None:
    stalls = 0

    def count() -> None:
        nonlocal stalls
        stalls += 1
        over.set()

    over = asyncio.Event()
    timers = TimerWheel(asyncio.get_running_loop(), tick_seconds=0.01)
    async with full() as (transport, _):
        StallWatch(transport, timers, 0.16, count)
        async with asyncio.timeout(5):
            await over.wait()
        await asyncio.sleep(0.1)
        assert stalls == 1
    timers.close()


async def test_a_client_that_takes_a_little_is_not() -> None:
    """Proven by order: it took something within every bound until it stopped, and only then was it given
    up."""
    loop = asyncio.get_running_loop()
    timers = TimerWheel(loop, tick_seconds=0.01)
    async with full() as (transport, peer):
        over = asyncio.Event()
        watch = StallWatch(transport, timers, 0.4, over.set)
        last = untaken(transport)
        for _ in range(6):
            taken = loop.time()
            while untaken(transport) == last:
                await loop.sock_recv(peer, 500_000)
                await asyncio.sleep(0)
            last = untaken(transport)
            await asyncio.sleep(0.15)
            if loop.time() - taken < 0.3:  # else this machine was held up
                assert not over.is_set()
        async with asyncio.timeout(5):
            await over.wait()
        watch.end()
    timers.close()


async def test_the_kernels_patience_is_longer_meanwhile() -> None:
    timers = TimerWheel(asyncio.get_running_loop(), tick_seconds=0.01)
    async with full() as (transport, _):
        watch = StallWatch(transport, timers, 8.0, lambda: None)
        watch._look()
        assert user_timeout(transport) > 8000
        watch.end()
        assert user_timeout(transport) == DEAD_AFTER_MILLISECONDS
        StallWatch(transport, timers, 8.0, lambda: None).end()  # never looked: nothing to undo
    timers.close()


async def test_a_client_that_goes_meanwhile_is_nobodys() -> None:
    timers = TimerWheel(asyncio.get_running_loop(), tick_seconds=0.01)
    over = asyncio.Event()
    async with full() as (transport, _):
        watch = StallWatch(transport, timers, 0.08, over.set)
        transport.abort()
        await asyncio.sleep(0.3)
        watch.end()
        assert not over.is_set()
    timers.close()


async def test_what_is_not_taken() -> None:
    async with full() as (transport, peer):
        before = untaken(transport)
        assert before > transport.get_write_buffer_size() > 0
        async with asyncio.timeout(5):
            while untaken(transport) == before:
                await asyncio.get_running_loop().sock_recv(peer, 1_000_000)
        assert untaken(transport) < before
