"""Usage events and a database for tests of what becomes of them."""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from fastllm_control.access import Actor
from fastllm_control.ingest import store
from fastllm_control.transaction import Database
from fastllm_shared.ids import uuid7_text
from fastllm_shared.usage import UsageAck, UsageBatch, UsageEvent

PROXY = Actor(name="proxy", via="proxy")
NOON = datetime.datetime(2026, 11, 30, 12, 0, tzinfo=datetime.UTC)


def event_id(at: float) -> str:
    """An id minted at `at`, Unix seconds."""
    return uuid7_text(lambda: round(at * 1e9))


def make_event(at: float | None = None, *, minted: float | None = None, **changes: Any) -> UsageEvent:
    """An ordinary answered request at `at` (Unix seconds; noon of a Monday unless said), whose id says so
    too unless it was `minted` at another time."""
    moment = NOON.timestamp() if at is None else at
    event = UsageEvent(
        id=event_id(moment if minted is None else minted),
        at=moment,
        replica="replica-1",
        request_id="req-1",
        endpoint="/v1/chat/completions",
        status=200,
        principal="team-a",
        key_prefix="sk-abcdefgh",
        model="assistant",
        provider_model="qwen",
        provider="gpu-1",
        prompt_tokens=100,
        completion_tokens=20,
        usage_reported=True,
        attempts=1,
        duration_ms=250.0,
    )
    return msgspec.structs.replace(event, **changes)


def batch_of(*events: UsageEvent, replica: str = "replica-1") -> UsageBatch:
    return UsageBatch(replica=replica, events=events)


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Database]:
    """A `Database` at `url`, closed afterwards."""
    engine = create_async_engine(url, pool_size=10)
    try:
        yield Database(engine)
    finally:
        await engine.dispose()


async def put(database: Database, *events: UsageEvent) -> UsageAck:
    """Store the events as one batch, committed."""
    async with database.begin(PROXY) as tx:
        return await store(tx.session, batch_of(*events))


async def rows_of(database: Database, query: str, **values: Any) -> list[tuple[Any, ...]]:
    """What a query finds."""
    async with database.read() as session:
        return [tuple(row) for row in await session.execute(text(query), values)]


async def run(database: Database, statement: str, **values: Any) -> None:
    """One statement, committed."""
    async with database.begin(PROXY) as tx:
        await tx.session.execute(text(statement), values)


async def make_principal(database: Database, identity: UUID, name: str) -> None:
    await run(
        database,
        "INSERT INTO principals (id, name, kind) VALUES (:id, :name, 'service_account')",
        id=identity,
        name=name,
    )


async def make_key(database: Database, identity: UUID, principal_id: UUID) -> None:
    await run(
        database,
        "INSERT INTO api_keys (id, principal_id, name, digest, prefix)"
        " VALUES (:id, :principal_id, 'test', :digest, 'sk-abcdefgh')",
        id=identity,
        principal_id=principal_id,
        digest=identity.bytes * 2,
    )
