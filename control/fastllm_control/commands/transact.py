"""How a command changes the database: one transaction, audited as the command line's, on a checked schema."""

from __future__ import annotations

import asyncio
import getpass
from collections.abc import Awaitable, Callable
from typing import TypeVar

import uvloop

from fastllm_control import migrate
from fastllm_control.access import Actor
from fastllm_control.config import DatabaseSettings
from fastllm_control.database import open_engine, reached
from fastllm_control.transaction import Database, Transaction
from fastllm_shared.ids import uuid7_text

T = TypeVar("T")


def transact(settings: DatabaseSettings, work: Callable[[Transaction], Awaitable[T]]) -> T:
    """Run `work` in a transaction of its own and commit. Raises `SchemaMismatch`, and what `work` raises."""

    async def within(database: Database) -> T:
        async with database.begin(command_actor()) as tx:
            return await work(tx)

    return with_database(settings, within)


def with_database(settings: DatabaseSettings, work: Callable[[Database], Awaitable[T]]) -> T:
    """Run `work` with the opened database. Raises `SchemaMismatch`, and what `work` raises."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_with_database(settings, work))


async def _with_database(settings: DatabaseSettings, work: Callable[[Database], Awaitable[T]]) -> T:
    engine = open_engine(settings)
    try:
        async with reached(engine) as connection:
            await migrate.check(connection)
        return await work(Database(engine))
    finally:
        await engine.dispose()


def command_actor() -> Actor:
    """Whoever sits at the command line, by the name that the operating system has for them."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # no entry for this user id, as in many containers
        name = "unknown"
    return Actor(name=f"command line ({name})", via="command", request_id=uuid7_text())
