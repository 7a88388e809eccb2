"""Bringing the schema up to this program, and refusing to start on one that is not.

Migrations lie in the package when it was built as a wheel, and at the top of the tree in a checkout.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import uvloop
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.pool import NullPool

from fastllm_control.advisory_locks import AdvisoryLock, take
from fastllm_control.database import reached


class SchemaMismatch(Exception):
    """The schema is not this program's. `exit_code` is what the process ends with."""

    exit_code = 1


class SchemaTooNew(SchemaMismatch):
    """78 is `EX_CONFIG` of sysexits.h: a supervisor need not try again."""

    exit_code = 78


def upgrade(url: str) -> None:
    """Migrate the database at `url` (`postgresql+asyncpg://…`) to this program's newest revision.

    Runs an event loop of its own: from a coroutine, call it in a thread. Raises `SchemaTooNew`,
    `DatabaseUnreachable`.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_upgrade(url))


async def check(connection: AsyncConnection) -> None:
    """Raises `SchemaMismatch` unless the schema is exactly this program's. Changes nothing."""
    found = await connection.run_sync(_revision)
    scripts = ScriptDirectory.from_config(_configuration())
    _refuse_newer(found, scripts)
    newest = scripts.get_current_head()
    if found != newest:
        raise SchemaMismatch(
            f"the database's schema is at revision {found or 'none'}, this program needs {newest}:"
            " run `fastllm migrate` first"
        )


def newest_revision() -> str:
    """The revision that this program knows as the newest."""
    return str(ScriptDirectory.from_config(_configuration()).get_current_head())


async def _upgrade(url: str) -> None:
    engine = create_async_engine(url, poolclass=NullPool)
    try:
        async with reached(engine) as connection, connection.begin():
            await take(connection, AdvisoryLock.MIGRATE)
            await connection.run_sync(_run_migrations)
    finally:
        await engine.dispose()


def _run_migrations(connection: Connection) -> None:
    configuration = _configuration()
    _refuse_newer(_revision(connection), ScriptDirectory.from_config(configuration))
    configuration.attributes["connection"] = connection
    command.upgrade(configuration, "head")


def _revision(connection: Connection) -> str | None:
    if connection.execute(text("SELECT to_regclass('alembic_version')")).scalar() is None:
        return None
    found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return None if found is None else str(found)


def _refuse_newer(found: str | None, scripts: ScriptDirectory) -> None:
    known = {script.revision for script in scripts.walk_revisions()}
    if found is not None and found not in known:
        raise SchemaTooNew(
            f"the database's schema is at revision {found}, and the newest that this program knows is"
            f" {scripts.get_current_head()}: it is older than the schema. A rollback or a drifted image pin"
            " is the usual cause. Nothing was changed; start a program that knows the revision"
        )


def _configuration() -> Config:
    packaged = Path(__file__).parent / "migrations"
    folder = packaged if packaged.is_dir() else Path(__file__).parents[2] / "migrations"
    configuration = Config()
    configuration.set_main_option("script_location", str(folder).replace("%", "%%"))
    return configuration
