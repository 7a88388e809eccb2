"""SQL of limits and budgets."""

from __future__ import annotations

import datetime

from fastllm_control.repositories import caps
from fastllm_control.services import caps as service
from fastllm_control.services.caps import BudgetTerms
from fastllm_control.transaction import Database
from fastllm_shared.ids import uuid7
from fastllm_shared.snapshot import LimitsEntry
from tests.fakes.access import COMMAND, Access

NOW = datetime.datetime(2026, 3, 15, tzinfo=datetime.UTC)
NAMES = ("ada", "bob", "carol")


async def capped(access: Access) -> None:
    for number, name in enumerate(NAMES, 1):
        await access.principal(name)
        async with access.database.begin(COMMAND) as tx:
            await service.set_limits(tx, name, LimitsEntry(number))
            await service.set_budget(tx, name, BudgetTerms(number, None, "daily", "UTC", None), NOW)


async def test_of_one_principal(access: Access, database: Database) -> None:
    await capped(access)
    bob = (await access.actor("bob")).principal_id
    assert bob is not None
    async with database.begin(COMMAND) as tx:
        for lock in (False, True):
            limit = await caps.limit_of(tx.session, bob, lock=lock)
            budget = await caps.budget_of(tx.session, bob, lock=lock)
            assert limit is not None
            assert budget is not None
            assert (limit.requests_per_min, budget.tokens_total) == (2, 2)
        assert await caps.limit_of(tx.session, uuid7(), lock=True) is None
        assert await caps.budget_of(tx.session, uuid7(), lock=True) is None


async def test_pages(access: Access, database: Database) -> None:
    await capped(access)
    async with database.read() as session:
        limits = await caps.limits_page(session, after=None, limit=2)
        assert [(row.requests_per_min, name) for row, name in limits] == [(1, "ada"), (2, "bob")]
        after = limits[0][0].principal_id
        rest = await caps.limits_page(session, after=after, limit=5)
        assert [name for _, name in rest] == ["bob", "carol"]
        budgets = await caps.budgets_page(session, after=None, limit=2)
        assert [(row.tokens_total, name) for row, name in budgets] == [(1, "ada"), (2, "bob")]
        others = await caps.budgets_page(session, after=after, limit=5)
        assert [name for _, name in others] == ["bob", "carol"]


async def test_both_go_with_their_principal(access: Access, database: Database) -> None:
    await capped(access)
    async with database.engine.begin() as connection:
        await connection.exec_driver_sql("DELETE FROM principals WHERE name = 'bob'")
    for table in ("limits", "budgets"):
        assert await access.rows(f"SELECT count(*) FROM {table}") == [(2,)]
