"""How commands change the database."""

from __future__ import annotations

import asyncio

import pytest

from fastllm_control.commands.transact import command_actor, transact
from fastllm_control.config import DatabaseSettings
from fastllm_control.errors import Conflict
from fastllm_control.migrate import SchemaMismatch
from fastllm_control.services import roles
from fastllm_control.transaction import Transaction
from tests.fakes.access import Access


async def test_it_is_one_audited_transaction(access: Access, database_url: str) -> None:
    async def work(tx: Transaction) -> str:
        return (await roles.create(tx, "by-command")).name

    settings = DatabaseSettings(database_url=database_url)
    assert await asyncio.to_thread(transact, settings, work) == "by-command"
    ((actor, via),) = await access.rows("SELECT actor, via FROM audit_events")
    assert via == "command"
    assert actor.startswith("command line (")


async def test_a_failure_leaves_nothing(access: Access, database_url: str) -> None:
    async def work(tx: Transaction) -> None:
        await roles.create(tx, "by-command")
        raise Conflict("no", "no")

    with pytest.raises(Conflict):
        await asyncio.to_thread(transact, DatabaseSettings(database_url=database_url), work)
    assert await access.rows("SELECT name FROM roles WHERE name = 'by-command'") == []


async def test_another_schema_is_left_alone(empty_database_url: str) -> None:
    async def work(tx: Transaction) -> None:
        raise AssertionError("must not run")

    with pytest.raises(SchemaMismatch):
        await asyncio.to_thread(transact, DatabaseSettings(database_url=empty_database_url), work)


def test_the_command_line_may_everything() -> None:
    actor = command_actor()
    assert actor.may("access:write")
    assert actor.request_id
