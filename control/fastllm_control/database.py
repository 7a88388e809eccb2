"""Opening the database: the one place that knows driver options and how long anything may take."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import asyncpg
import msgspec
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from fastllm_control.config import DatabaseSettings, driver_url

CONNECT_SECONDS = 5.0


class Patience(msgspec.Struct, frozen=True):
    """How long is waited for a connection to open, for an answer, and for a free connection; seconds."""

    connect: float = CONNECT_SECONDS
    command: float = 30.0
    pool: float = 5.0


class DatabaseUnreachable(Exception):
    """The database could not be opened; the message says which one, why, and what to check."""


def open_engine(settings: DatabaseSettings, patience: Patience | None = None) -> AsyncEngine:
    """An engine that connects on first use. All waiting has an end, so that a database that hangs is a 503
    and not a pile of waiting requests."""
    wait = patience or Patience()
    options: dict[str, Any] = {"timeout": wait.connect, "command_timeout": wait.command}
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
        pool_timeout=wait.pool,
        pool_pre_ping=True,
        connect_args=options,
        hide_parameters=True,
    )


@asynccontextmanager
async def reached(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """A connection, or `DatabaseUnreachable` that a person at a terminal can act on. Only for commands and
    the start of a process: within requests a failure is a 503."""
    try:
        connection = await engine.connect()
    except (OSError, DBAPIError) as error:
        url = engine.url
        cause = error.orig.__cause__ if isinstance(error, DBAPIError) and error.orig else error
        reason = str(cause) or type(cause).__name__
        where = f"{url.host}:{url.port or 5432}/{url.database}"
        raise DatabaseUnreachable(
            f"cannot open the database at {where} as {url.username}: {reason.splitlines()[0]}:"
            " check that it runs, and FASTLLM_DATABASE_URL"
        ) from error
    try:
        yield connection
    finally:
        await connection.close()


def listener_for(settings: DatabaseSettings) -> Callable[[], Awaitable[asyncpg.Connection[Any]]]:
    """Opens connections beside the engine's pool, for listening to notifications."""
    address = driver_url(settings.database_url).replace("postgresql+asyncpg://", "postgresql://", 1)

    async def connect() -> asyncpg.Connection[Any]:
        connection: asyncpg.Connection[Any] = await asyncpg.connect(
            address, timeout=CONNECT_SECONDS, server_settings={"application_name": "fastllm-control-listener"}
        )
        return connection

    return connect
