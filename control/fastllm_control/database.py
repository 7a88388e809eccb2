"""Opening the database: the one place that knows driver options and how long anything may take."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import asyncpg
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from fastllm_control.config import DatabaseSettings, driver_url

CONNECT_SECONDS = 5.0
COMMAND_SECONDS = 30.0
POOL_WAIT_SECONDS = 5.0


def open_engine(settings: DatabaseSettings) -> AsyncEngine:
    """An engine that connects on first use. Waiting for a connection or for an answer has an end, so that
    a database that hangs is a 503 and not a pile of waiting requests."""
    options: dict[str, Any] = {"timeout": CONNECT_SECONDS, "command_timeout": COMMAND_SECONDS}
    if settings.pgbouncer:
        # Behind transaction pooling the next statement may reach a server connection that never saw the
        # preparation: nothing is cached, and names never collide.
        options["statement_cache_size"] = 0
        options["prepared_statement_cache_size"] = 0
        options["prepared_statement_name_func"] = lambda: f"__fastllm_{uuid4()}__"
    else:
        options["server_settings"] = {"application_name": "fastllm-control", "jit": "off"}
    return create_async_engine(
        driver_url(settings.database_url),
        pool_size=settings.database_pool_size,
        max_overflow=0,
        pool_timeout=POOL_WAIT_SECONDS,
        pool_pre_ping=True,
        connect_args=options,
        hide_parameters=True,
    )


def listener_for(settings: DatabaseSettings) -> Callable[[], Awaitable[asyncpg.Connection[Any]]]:
    """Opens connections beside the engine's pool, for listening to notifications."""
    address = driver_url(settings.database_url).replace("postgresql+asyncpg://", "postgresql://", 1)

    async def connect() -> asyncpg.Connection[Any]:
        connection: asyncpg.Connection[Any] = await asyncpg.connect(
            address, timeout=CONNECT_SECONDS, server_settings={"application_name": "fastllm-control-listener"}
        )
        return connection

    return connect
