"""What tests of the proxy start from. It runs on uvloop and nothing else, and so do they."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import uvloop

from fastllm_proxy.control_plane import ControlPlane
from fastllm_proxy.upstream import UpstreamConnection, UpstreamPool
from tests.fakes.control import TOKEN, FakeControl
from tests.fakes.engine import FakeEngine
from tests.fakes.log import CapturedLog
from tests.fakes.upstreams import pool_to


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with FakeEngine.start() as running:
        yield running


@pytest.fixture
async def pool(engine: FakeEngine) -> AsyncIterator[UpstreamPool]:
    """Connections to `engine`."""
    pool = pool_to(engine.port)
    yield pool
    await pool.close()


@pytest.fixture
async def connection(pool: UpstreamPool) -> AsyncIterator[UpstreamConnection]:
    connection = await pool.connect()
    yield connection
    connection.abort()


@pytest.fixture
async def control() -> AsyncIterator[FakeControl]:
    async with FakeControl.start() as running:
        yield running


@pytest.fixture
async def plane(control: FakeControl) -> AsyncIterator[ControlPlane]:
    """The proxy's channel to `control`."""
    async with ControlPlane(control.url, (TOKEN,), "test") as client:
        yield client


@pytest.fixture
def captured() -> CapturedLog:
    return CapturedLog()
