"""Migrating, and refusing to start on another schema: as processes, the way operators do it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from fastllm_control.migrate import SchemaMismatch, SchemaTooNew, check, newest_revision, upgrade

SECRETS = {"FASTLLM_ENCRYPTION_KEY": "11" * 32, "FASTLLM_PROXY_TOKEN": "proxy-token-for-tests"}


async def fastllm(url: str, *arguments: str) -> tuple[int, str]:
    """Run `fastllm ARGUMENTS…`; returns exit code and standard error."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-P", "-m", "fastllm_control", *arguments),
        env={**os.environ, **SECRETS, "FASTLLM_DATABASE_URL": url},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        _, errors = await process.communicate()
    return process.returncode or 0, errors.decode()


async def query(url: str, *statements: str) -> Sequence[object]:
    """Run statements; returns the first column of the last one's rows."""
    engine = create_async_engine(url, poolclass=NullPool)
    async with engine.begin() as connection:
        for statement in statements:
            result = await connection.execute(text(statement))
        rows = list(result.scalars()) if result.returns_rows else []
    await engine.dispose()
    return rows


async def checked(url: str) -> None:
    engine = create_async_engine(url, poolclass=NullPool)
    try:
        async with engine.connect() as connection:
            await check(connection)
    finally:
        await engine.dispose()


async def test_five_at_once_migrate_once(empty_database_url: str) -> None:
    done = await asyncio.gather(*(fastllm(empty_database_url, "migrate") for _ in range(5)))
    assert done == [(0, "")] * 5
    assert await query(empty_database_url, "SELECT version_num FROM alembic_version") == [newest_revision()]
    assert await query(empty_database_url, "SELECT count(*) FROM roles") == [4]
    assert await query(empty_database_url, "SELECT count(*) FROM config") == [1]


async def test_migrating_again_changes_nothing(database_url: str) -> None:
    before = await query(database_url, "SELECT id FROM roles ORDER BY id")
    await asyncio.to_thread(upgrade, database_url)
    assert await query(database_url, "SELECT id FROM roles ORDER BY id") == before
    await checked(database_url)


async def test_a_program_older_than_the_schema_does_not_start(database_url: str) -> None:
    await query(database_url, "UPDATE alembic_version SET version_num = '9999'")
    before = await query(database_url, "SELECT version FROM config")
    for arguments in (("control", "--port", "0"), ("migrate",)):
        code, errors = await fastllm(database_url, *arguments)
        assert code == 78
        for part in ("9999", newest_revision(), "rollback", "image pin"):
            assert part in errors
        assert "Traceback" not in errors
    assert await query(database_url, "SELECT version_num FROM alembic_version") == ["9999"]
    assert await query(database_url, "SELECT version FROM config") == before


async def test_a_program_newer_than_the_schema_says_what_to_do(empty_database_url: str) -> None:
    code, errors = await fastllm(empty_database_url, "control", "--port", "0")
    assert code == 1
    assert "run `fastllm migrate` first" in errors
    assert await query(empty_database_url, "SELECT to_regclass('roles')::text") == [None]


async def test_check_tells_the_two_apart(database_url: str) -> None:
    await query(database_url, "UPDATE alembic_version SET version_num = '0001'")
    with pytest.raises(SchemaMismatch, match="revision 0001") as older:
        await checked(database_url)
    assert not isinstance(older.value, SchemaTooNew)
    await query(database_url, "UPDATE alembic_version SET version_num = 'zzzz'")
    with pytest.raises(SchemaTooNew, match="zzzz"):
        await checked(database_url)


async def test_a_failed_migration_leaves_nothing_behind(empty_database_url: str) -> None:
    await query(empty_database_url, "CREATE TABLE audit_events (x int)")
    with ThreadPoolExecutor(1) as threads, pytest.raises(Exception, match="audit_events"):
        await asyncio.wrap_future(threads.submit(upgrade, empty_database_url))
    assert await query(empty_database_url, "SELECT to_regclass('roles')::text") == [None]
    await query(empty_database_url, "DROP TABLE audit_events")
    await asyncio.to_thread(upgrade, empty_database_url)
    await checked(empty_database_url)
