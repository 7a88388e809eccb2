"""`fastllm create-key`."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from sqlalchemy import text

from fastllm_control.repositories import keys as repository
from fastllm_control.transaction import Database
from fastllm_shared.keys import digest_of
from tests.fakes.access import Access
from tests.fakes.command import fastllm


async def kept(database: Database) -> Any:
    async with database.read() as session:
        ((row, _),) = await repository.page(session, after=None, limit=10)
    return row


async def test_the_key_is_printed_alone_and_works(
    database: Database, access: Access, database_url: str
) -> None:
    await access.principal("team-a", kind="service_account")
    done = await fastllm("create-key", "--principal", "team-a", "--key-name", "ci", url=database_url)
    assert done.code == 0
    key = done.out.removesuffix("\n")
    assert key.startswith("sk-")
    assert "\n" not in key
    row = await kept(database)
    assert (row.digest, row.name, row.scope) == (digest_of(key), "ci", "invoke")
    assert row.created_by.startswith("command line")
    days = row.expires_at - datetime.datetime.now(datetime.UTC)
    assert abs(days - datetime.timedelta(days=90)) < datetime.timedelta(minutes=5)
    assert key not in done.errors
    assert row.prefix in done.errors
    async with database.read() as session:
        via = await session.execute(text("SELECT via FROM audit_events WHERE action = 'key.create'"))
        assert list(via.scalars()) == ["command"]


async def test_without_an_expiry_and_with_the_admin_scope(
    database: Database, access: Access, database_url: str
) -> None:
    await access.principal("team-a")
    flags = ("--principal", "team-a", "--scope", "admin", "--expires-in-days", "0")
    assert (await fastllm("create-key", *flags, url=database_url)).code == 0
    row = await kept(database)
    assert (row.scope, row.expires_at) == ("admin", None)


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (("--principal", "nobody"), 1, "there is no principal 'nobody'"),
        ((), 2, "--principal: required, but not set"),
        (("--principal", "x", "--scope", "root"), 2, "--scope"),
        (("--principal", "x", "--expires-in-days", "-1"), 2, "--expires-in-days"),
    ],
)
async def test_what_is_wrong_is_one_line(
    database_url: str, flags: tuple[str, ...], code: int, message: str
) -> None:
    done = await fastllm("create-key", *flags, url=database_url)
    assert done.code == code
    assert message in done.errors
    assert done.errors.count("\n") == 1
    assert done.out == ""
