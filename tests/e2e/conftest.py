"""A gateway of real processes, a model of one test's own, and the SDKs as clients of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anthropic
import openai
import pytest

from tests.fakes.engine import FakeEngine
from tests.fakes.gateway import Gateway


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with FakeEngine.start(api_key="sk-of-the-engine") as engine:
        yield engine


@pytest.fixture
async def model(gateway: Gateway, engine: FakeEngine, request: pytest.FixtureRequest) -> str:
    """A model of this test's own, served by `engine`."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name.lower()).strip("-")[:60].strip("-")
    await gateway.expose(name, engine.url, upstream_api_key="sk-of-the-engine")
    return name


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{gateway.proxy_url}/v1", api_key=gateway.api_key, max_retries=0, timeout=30
    ) as client:
        yield client


@pytest.fixture
async def claude(gateway: Gateway) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(
        base_url=gateway.proxy_url, api_key=gateway.api_key, max_retries=0, timeout=30
    ) as client:
        yield client
