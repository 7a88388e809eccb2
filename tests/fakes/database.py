"""Making and dropping databases on the test process's own server."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator

from sqlalchemy import text

from fastllm_control.postgres import EmbeddedPostgres
from fastllm_control.postgres_data import DATABASE, ROLE
from fastllm_control.transaction import Database


class TestDatabases:
    """Databases on one server, named by a counter. All statements go through `psql`, so that fixtures
    need no event loop."""

    __test__ = False

    def __init__(self, server: EmbeddedPostgres, numbers: Iterator[int]) -> None:
        self._server = server
        self._numbers = numbers

    def url(self, name: str) -> str:
        return self._server.url(name)

    def create(self, template: str | None = None) -> str:
        """A new database, empty or cloned from `template`; returns its name."""
        name = f"test_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template or 'template0'} STRATEGY file_copy")
        return name

    def drop(self, name: str) -> None:
        """Drop it, whoever is still connected."""
        self.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def execute(self, statement: str, database: str = DATABASE) -> str:
        """Run one statement; returns what it printed, unaligned."""
        password = self._server.url().split("@")[0].rsplit(":", 1)[1]
        command = [self._server.programs.program("psql"), "-X", "-q", "-A", "-t", "-h", "127.0.0.1"]
        command += [
            "-p",
            str(self._server.port),
            "-U",
            ROLE,
            "-d",
            database,
            "-v",
            "ON_ERROR_STOP=1",
            "-c",
            statement,
        ]
        done = subprocess.run(
            command, env={"PGPASSWORD": password}, capture_output=True, check=False, text=True
        )
        if done.returncode != 0:
            raise RuntimeError(f"{statement}: {done.stderr}")
        return done.stdout.strip()


async def blocked(database: Database, count: int = 1) -> None:
    """Wait until so many transactions of this database wait for a lock."""
    query = text(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    async with asyncio.timeout(10), database.engine.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        while True:
            if (await connection.execute(query)).scalar_one() >= count:
                return
            await asyncio.sleep(0.005)
