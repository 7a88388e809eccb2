from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from fastllm_proxy.errors import ConnectFailed
from fastllm_proxy.pools import MAX_CONTEXTS, PoolFactory
from fastllm_proxy.timers import TimerWheel
from fastllm_shared.addresses import AddressPolicy
from fastllm_shared.snapshot import ProviderEntry
from tests.fakes.certificates import Authority
from tests.fakes.engine import FakeEngine


@pytest.fixture
async def timers() -> AsyncIterator[TimerWheel]:
    wheel = TimerWheel(asyncio.get_running_loop())
    yield wheel
    wheel.close()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
async def secure(authority: Authority) -> AsyncIterator[FakeEngine]:
    async with FakeEngine.start(tls=authority.server_context("engine.test")) as engine:
        yield engine


def provider(api_base: str, **fields: object) -> ProviderEntry:
    entry = ProviderEntry(id="p", name="p", kind="static", api_base=api_base)
    return msgspec.structs.replace(entry, **fields)


async def exchange(factory: PoolFactory, entry: ProviderEntry) -> int:
    """The status of one request through a pool of its own."""
    pool = factory(entry)
    try:
        connection = await pool.connect()
        connection.send(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n", b"")
        head = await connection.head(5)
        connection.abort()
        return head.status
    finally:
        await pool.close()


async def test_plain_http(timers: TimerWheel) -> None:
    async with FakeEngine.start() as engine:
        assert await exchange(PoolFactory(AddressPolicy(), timers, None), provider(engine.url)) == 200


async def test_a_private_authority_of_the_provider(
    timers: TimerWheel, authority: Authority, secure: FakeEngine
) -> None:
    factory = PoolFactory(AddressPolicy(), timers, None)
    trusted = provider(secure.url, ca=authority.pem, server_name="engine.test")
    assert await exchange(factory, trusted) == 200
    for untrusted in (
        provider(secure.url, server_name="engine.test"),
        provider(secure.url, ca=authority.pem),
        provider(secure.url, ca=authority.pem, server_name="another.test"),
    ):
        with pytest.raises(ConnectFailed) as raised:
            await exchange(factory, untrusted)
        assert raised.value.cause == "tls"


async def test_a_private_authority_of_the_deployment(
    timers: TimerWheel, authority: Authority, secure: FakeEngine, tmp_path: Path
) -> None:
    bundle = tmp_path / "bundle.pem"
    bundle.write_text(authority.pem)
    factory = PoolFactory(AddressPolicy(), timers, str(bundle))
    assert await exchange(factory, provider(secure.url, server_name="engine.test")) == 200


@pytest.mark.parametrize(
    "fields",
    [
        {"api_base": "ftp://engine/v1"},
        {"api_base": "http://user:password@engine/v1"},
        {"api_base": "nonsense"},
        {"api_base": "https://engine/v1", "ca": "no PEM at all"},
    ],
)
async def test_what_cannot_be_dialled_at_all(timers: TimerWheel, fields: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r".") as raised:
        PoolFactory(AddressPolicy(), timers, None)(provider(**fields))
    assert "password" not in str(raised.value).replace("user name or password", "")


async def test_the_addresses_that_may_be_dialled_are_the_pools(timers: TimerWheel) -> None:
    factory = PoolFactory(AddressPolicy(allow_loopback=False), timers, None)
    with pytest.raises(ConnectFailed) as raised:
        await exchange(factory, provider("http://127.0.0.1:1/v1"))
    assert raised.value.cause == "address"


async def test_contexts_are_kept_per_authority_but_not_without_end(
    timers: TimerWheel, authority: Authority
) -> None:
    factory = PoolFactory(AddressPolicy(), timers, None)
    first = factory.context(authority.pem)
    assert factory.context(authority.pem) is first
    for number in range(MAX_CONTEXTS):
        factory.context(f"# {number}\n{authority.pem}")
    assert factory.context(authority.pem) is not first
