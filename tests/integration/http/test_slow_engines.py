"""Engines that take their time: a byte at a time, no byte at all, no name, no answer to a knock."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fastllm_proxy.dispatch import Patience
from fastllm_proxy.pools import PoolFactory
from fastllm_proxy.relay import RelayTimes
from fastllm_proxy.timers import TimerWheel
from fastllm_proxy.upstream import Endpoint
from fastllm_shared.addresses import AddressPolicy
from tests.fakes.edge import eventually
from tests.fakes.engine import Answer, FakeEngine, Fault
from tests.fakes.ipv6 import speaks_ipv6
from tests.fakes.upstreams import no_answer
from tests.integration.http.engines import call, facing, failed, quiet, spotless
from tests.proxy.rig import chat, gateway

HURRY = Patience(stream=0.2, whole=0.2)
TRICKLE = b"HTTP/1.1 200 OK\r\n" + b"x-name: value\r\n" * 1_000


# Heads.


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "answer",
    [
        Answer(fault=Fault("stall")),
        Answer(fault=Fault("stall", at="mid_head")),
        Answer(raw=TRICKLE, bytes_per_send=1, gap=0.01),
    ],
    ids=["never a byte", "half a head", "a byte at a time"],
)
async def test_a_head_that_does_not_come_in_time_is_given_up(
    tmp_path: Path, answer: Answer, stream: bool
) -> None:
    async with facing(tmp_path, answer, patience=HURRY) as (proxy, engine):
        got = await call(proxy, chat(stream=stream))
        assert (got.status, got.code) == (504, "upstream_timeout")
        assert b"x-should-retry: false" in got.head
        await eventually(lambda: engine.requests[0].aborted_at is not None)
        assert engine.hits("/chat/completions") == 1
        assert proxy.backend(1).pool.idle == 0
        assert (await proxy.events.get()).status == 504


# Bodies.


@pytest.mark.parametrize("framing", ["length", "chunked", "eof"])
async def test_a_body_that_comes_a_byte_at_a_time_is_not_idle(tmp_path: Path, framing: Any) -> None:
    """A hundred bytes, 10 ms apart: twice the limit for silence."""
    body = b"x" * 100
    answer = Answer(body=body, framing=framing, bytes_per_send=1, gap=0.01)
    async with facing(tmp_path, answer, times=RelayTimes(idle=0.5)) as (proxy, _):
        got = await call(proxy)
        assert (got.status, got.body, got.whole) == (200, body, True)


@pytest.mark.parametrize(("length", "sent"), [(20, False), (100_000, True), (None, True)])
async def test_a_body_that_falls_silent_is_given_up(tmp_path: Path, length: int | None, sent: bool) -> None:
    framed = b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n"
    if length is not None:
        framed = b"content-length: %d\r\n\r\nhello" % length
    raw = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n" + framed
    async with facing(tmp_path, Answer(raw=raw), times=RelayTimes(idle=0.1)) as (proxy, engine):
        got = await call(proxy)
        if sent:
            assert (got.status, got.body, got.whole) == (200, b"hello", False)
        else:
            assert (got.status, got.code) == (504, "upstream_timeout")
        await eventually(lambda: engine.open_connections == 0)
        assert (await call(proxy)).status == 200


# Addresses.


class Names:
    """Answers with these addresses, or never."""

    def __init__(self, *addresses: tuple[str, int], silent: bool = False) -> None:
        self.asked = 0
        self.silent = silent
        self.endpoints: list[Endpoint] = [(socket.AF_INET, address) for address in addresses]

    async def __call__(self, host: str, port: int) -> Sequence[Endpoint]:
        self.asked += 1
        if self.silent:
            await asyncio.sleep(3600)
        return self.endpoints

    def pools(self, connect_seconds: float = 5.0) -> Callable[[TimerWheel], PoolFactory]:
        return lambda timers: PoolFactory(
            AddressPolicy(), timers, None, connect_seconds=connect_seconds, resolve=self
        )


@pytest.fixture
def dead_port() -> Iterator[int]:
    """Nobody listens there."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        yield unused.getsockname()[1]


@pytest.fixture
def deaf_port() -> Iterator[int]:
    with no_answer() as port:
        yield port


NAMED = {"api_base": "http://engine.example:1/v1"}


async def test_a_name_that_is_never_answered_costs_the_time_to_connect_and_is_asked_for_once(
    tmp_path: Path,
) -> None:
    names = Names(silent=True)
    async with (
        FakeEngine.start() as engine,
        gateway(tmp_path, engine, providers=NAMED, pools=names.pools(0.1)) as proxy,
    ):
        for got in await asyncio.gather(*(call(proxy) for _ in range(20))):
            failed(got)
        assert names.asked == 1
        assert "no connect within 0.1 s" in proxy.log_text()
        await quiet(proxy)


async def test_a_name_that_is_not_known_is_a_failed_attempt(tmp_path: Path) -> None:
    unknown = {"api_base": "http://engine.invalid/v1"}
    async with (
        spotless(),
        FakeEngine.start() as engine,
        gateway(tmp_path, engine, providers=unknown) as proxy,
    ):
        got = await call(proxy)
        failed(got)
        assert b"engine.invalid" not in got.body
        assert "name: " in proxy.log_text()
        await quiet(proxy)


async def test_a_dead_address_is_passed_over_and_tried_last_from_then_on(
    tmp_path: Path, dead_port: int, deaf_port: int
) -> None:
    async with FakeEngine.start() as engine:
        names = Names(("127.0.0.1", deaf_port), ("127.0.0.1", dead_port), ("127.0.0.1", engine.port))
        async with gateway(tmp_path, engine, providers=NAMED, pools=names.pools(1.0)) as proxy:
            assert (await call(proxy)).status == 200
            pool = proxy.backend(1).pool
            assert pool._failed == set(names.endpoints[:2])
            engine.connections[0].break_off("close")
            await eventually(lambda: pool.idle == 0)
            started = asyncio.get_running_loop().time()
            assert (await call(proxy)).status == 200
            assert asyncio.get_running_loop().time() - started < 0.3  # its share for the first is longer
            assert "attempt failed" not in proxy.log_text()
            await quiet(proxy)


async def test_addresses_that_may_not_be_dialled_are_not(tmp_path: Path) -> None:
    names = Names(("169.254.169.254", 80))
    async with (
        FakeEngine.start() as engine,
        gateway(tmp_path, engine, providers=NAMED, pools=names.pools()) as proxy,
    ):
        got = await call(proxy)
        failed(got)
        assert b"169.254" not in got.body
        assert "address: " in proxy.log_text()
        names.endpoints.append((socket.AF_INET, ("127.0.0.1", engine.port)))
        assert (await call(proxy)).status == 200
        await quiet(proxy)


@pytest.mark.skipif(not speaks_ipv6(), reason="this machine has no ::1")
async def test_an_ipv6_address_in_brackets(tmp_path: Path) -> None:
    async with FakeEngine.start(host="::1") as engine:
        bracketed = {"api_base": f"http://[::1]:{engine.port}/v1"}
        async with gateway(tmp_path, engine, providers=bracketed) as proxy:
            assert (await call(proxy)).status == 200
            assert engine.requests[0].header("host") == f"[::1]:{engine.port}"
            await quiet(proxy)
