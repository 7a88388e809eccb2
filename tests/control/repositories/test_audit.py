"""SQL of the audit log."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec
import pytest

from fastllm_control.access import Actor
from fastllm_control.repositories import audit
from fastllm_control.repositories.audit import AuditFilter
from fastllm_control.transaction import Database
from fastllm_shared.ids import uuid7

IDENTITY = uuid7()


async def noted(database: Database) -> None:
    """Four events, the two of one transaction in the order in which they were noted."""
    ada = Actor(name="ada", via="session", request_id="r-1")
    bob = Actor(name="bob", via="key", request_id="r-2")
    async with database.begin(ada) as tx:
        tx.audit("role.create", "role", IDENTITY, "team")
        tx.audit("role.add_permission", "role", IDENTITY, "team")
    async with database.begin(bob) as tx:
        tx.audit("role.create", "role", uuid7(), "other")
    async with database.begin(bob) as tx:
        tx.audit("key.create", "key", uuid7(), "team")


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, [4, 3, 2, 1]),
        ({"actor": "ada"}, [2, 1]),
        ({"actor": "ad"}, []),
        ({"action": "role.create"}, [3, 1]),
        ({"target_kind": "key"}, [4]),
        ({"target": "team"}, [4, 2, 1]),
        ({"target": str(IDENTITY)}, [2, 1]),
        ({"target": "team", "target_kind": "role", "action": "role.create"}, [1]),
        ({"request_id": "r-2"}, [4, 3]),
        ({"actor": "%"}, []),
    ],
)
async def test_filters(database: Database, wanted: dict[str, Any], found: list[int]) -> None:
    await noted(database)
    async with database.read() as session:
        rows = await audit.page(session, 10, None, AuditFilter(**wanted))
        assert [row.id for row in rows] == found


async def test_pages_go_back_in_time(database: Database) -> None:
    await noted(database)
    async with database.read() as session:
        assert [row.id for row in await audit.page(session, 3, None, AuditFilter())] == [4, 3, 2]
        assert [row.id for row in await audit.page(session, 3, 3, AuditFilter())] == [2, 1]
        only = AuditFilter(actor="ada")
        assert [row.id for row in await audit.page(session, 2, 4, only)] == [2, 1]


async def test_since_is_inclusive_and_until_exclusive(database: Database) -> None:
    await noted(database)
    async with database.read() as session:
        rows = await audit.page(session, 11, None, AuditFilter())
        third = next(row.at for row in rows if row.id == 3)
        since = await audit.page(session, 11, None, AuditFilter(since=third))
        until = await audit.page(session, 11, None, AuditFilter(until=third))
        elsewhere = third.astimezone(datetime.timezone(datetime.timedelta(hours=-12)))
        same = await audit.page(session, 11, None, AuditFilter(since=elsewhere))
    assert [[row.id for row in found] for found in (since, until, same)] == [[4, 3], [2, 1], [4, 3]]


def test_a_filter_names_columns_only() -> None:
    """Each of them is looked up by its name."""
    columns = {"actor", "action", "target_kind", "request_id"}
    assert columns < {field.name for field in msgspec.structs.fields(AuditFilter)}
