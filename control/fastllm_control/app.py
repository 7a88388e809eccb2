"""The composition root: builds every part once, wires them, starts and stops what runs beside requests."""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.middleware import Middleware

from fastllm_control.api.everything import OPERATIONS
from fastllm_control.callers import Callers
from fastllm_control.config import ControlSettings
from fastllm_control.context import RequestContext
from fastllm_control.database import listener_for, open_engine
from fastllm_control.dial import Dialer
from fastllm_control.dispatch import build_routes
from fastllm_control.observe import Log, Metrics
from fastllm_control.operations import Operation
from fastllm_control.publisher import Publisher
from fastllm_control.reference import Reference
from fastllm_control.secrets import Keyring
from fastllm_control.security import LoginThrottle, Passwords, ProxyTokens
from fastllm_control.transaction import Database
from fastllm_control.upkeep import Upkeep

Clock = Callable[[], datetime.datetime]


def utc_now() -> datetime.datetime:
    """The time, in UTC."""
    return datetime.datetime.now(datetime.UTC)


@dataclass(frozen=True, slots=True)
class Services:
    """Everything that an operation may reach. One instance a process; each domain adds its own field.

    `stopping` is set when the process is told to end: whoever holds a request open must let it go then.
    """

    settings: ControlSettings
    operations: Sequence[Operation]
    reference: Reference
    log: Log
    metrics: Metrics
    clock: Clock
    stopping: asyncio.Event
    database: Database
    callers: Callers
    passwords: Passwords
    throttle: LoginThrottle
    secrets: Keyring
    publisher: Publisher
    dialer: Dialer


def build_services(
    settings: ControlSettings,
    log: Log,
    *,
    clock: Clock = utc_now,
    monotonic: Callable[[], float] = time.monotonic,
    operations: Sequence[Operation] = OPERATIONS,
    passwords: Passwords | None = None,
) -> Services:
    """All parts, wired; nothing is started and nothing connected."""
    database = Database(open_engine(settings))
    metrics = Metrics()
    secrets = Keyring.parse(settings.encryption_key)
    return Services(
        settings=settings,
        operations=operations,
        reference=Reference(operations),
        log=log,
        metrics=metrics,
        clock=clock,
        stopping=asyncio.Event(),
        database=database,
        callers=Callers(database, ProxyTokens(settings.proxy_tokens()), clock),
        passwords=passwords or Passwords(),
        throttle=LoginThrottle(monotonic),
        secrets=secrets,
        publisher=Publisher(database, listener_for(settings), secrets.open, log),
        dialer=Dialer(settings.address_policy()),
    )


def build_app(services: Services) -> Starlette:
    """The ASGI application. Its lifespan starts what runs beside requests, and stops it in reverse order."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with started(services):
            yield

    context = Middleware(
        RequestContext,
        trusted=services.settings.trusted_networks(),
        metrics=services.metrics,
        log=services.log,
    )
    return Starlette(
        routes=build_routes(services.operations, services), middleware=[context], lifespan=lifespan
    )


@asynccontextmanager
async def started(services: Services) -> AsyncIterator[None]:
    """Everything that runs beside requests, for as long as this is open."""
    async with AsyncExitStack() as stack:
        stack.push_async_callback(services.database.engine.dispose)
        await stack.enter_async_context(services.publisher.running(services.stopping))
        await stack.enter_async_context(Upkeep(services.database, services.log, services.clock).running())
        yield
