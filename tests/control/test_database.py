"""Opening the database: against the real one, hanging ones, and behind a pooler."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest
from sqlalchemy import text
from sqlalchemy.exc import TimeoutError as PoolTimeout

from fastllm_control.config import DatabaseSettings
from fastllm_control.database import Patience, listener_for, open_engine


async def test_connections_name_themselves(database_url: str) -> None:
    engine = open_engine(DatabaseSettings(database_url=database_url))
    async with engine.connect() as connection:
        name = await connection.execute(text("SELECT current_setting('application_name')"))
        assert name.scalar() == "fastllm-control"
    await engine.dispose()


async def test_behind_a_pooler_no_statement_is_kept(database_url: str) -> None:
    kept = "SELECT count(*) FROM pg_prepared_statements WHERE NOT from_sql OR from_sql"
    counts = {}
    for pgbouncer in (False, True):
        engine = open_engine(DatabaseSettings(database_url=database_url, pgbouncer=pgbouncer))
        async with engine.connect() as connection:
            for _ in range(3):
                await connection.execute(text("SELECT CAST(:x AS integer)"), {"x": 1})
            counts[pgbouncer] = (await connection.execute(text(kept))).scalar_one()
        await engine.dispose()
    assert counts[False] >= 2
    assert counts[True] <= 1


async def test_the_pool_is_bounded_and_waiting_for_it_ends(database_url: str) -> None:
    settings = DatabaseSettings(database_url=database_url, database_pool_size=1)
    engine = open_engine(settings, Patience(pool=0.2))
    async with engine.connect():
        with pytest.raises(PoolTimeout):
            await engine.connect().start()
    await engine.dispose()


async def test_a_server_that_accepts_and_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        settings = DatabaseSettings(database_url=f"postgresql://u@127.0.0.1:{port}/d")
        engine = open_engine(settings, Patience(connect=0.3))
        started = time.monotonic()
        with pytest.raises(TimeoutError):
            await engine.connect().start()
        assert time.monotonic() - started < 5
        await engine.dispose()


async def test_an_answer_that_never_comes(database_url: str) -> None:
    engine = open_engine(DatabaseSettings(database_url=database_url), Patience(command=0.3))
    async with engine.connect() as connection:
        with pytest.raises(TimeoutError):
            await connection.execute(text("SELECT pg_sleep(60)"))
    async with engine.connect() as connection:
        assert (await connection.execute(text("SELECT 1"))).scalar() == 1
    await engine.dispose()


async def test_a_listener_hears_what_is_announced(database_url: str) -> None:
    settings = DatabaseSettings(database_url=database_url)
    heard: asyncio.Queue[str] = asyncio.Queue()
    listener = await listener_for(settings)()
    await listener.add_listener("news", lambda *facts: heard.put_nowait(facts[3]))
    engine = open_engine(settings)
    async with engine.begin() as connection:
        await connection.execute(text("NOTIFY news, 'hello'"))
    assert await asyncio.wait_for(heard.get(), 5) == "hello"
    await listener.close()
    await engine.dispose()


async def test_a_connection_that_died_in_the_pool_is_replaced(database_url: str) -> None:
    engine = open_engine(DatabaseSettings(database_url=database_url, database_pool_size=2))
    async with engine.connect() as one, engine.connect() as other:
        victim = (await other.execute(text("SELECT pg_backend_pid()"))).scalar_one()
        await other.close()
        await one.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": victim})
    for _ in range(2):
        async with engine.connect() as connection:
            assert (await connection.execute(text("SELECT 1"))).scalar() == 1
    await engine.dispose()
