"""Limits and budgets: what replaces, what is kept, and what is no change."""

from __future__ import annotations

import asyncio
import datetime
from typing import Any

import msgspec
import pytest
from sqlalchemy import text

from fastllm_control.errors import Invalid, NotFound
from fastllm_control.services import caps
from fastllm_control.services.caps import BudgetTerms
from fastllm_control.tables.access import Budget
from fastllm_control.transaction import Database
from fastllm_shared.snapshot import LimitsEntry
from tests.fakes.access import COMMAND, Access
from tests.fakes.database import blocked

UTC = datetime.UTC
NOW = datetime.datetime(2026, 3, 15, 12, tzinfo=UTC)
TERMS = BudgetTerms(1000, None, "monthly", "UTC", None)


@pytest.fixture(autouse=True)
async def ada(access: Access) -> None:
    await access.principal("ada")


async def limit(database: Database, *wanted: int | None) -> int | None:
    async with database.begin(COMMAND) as tx:
        await caps.set_limits(tx, "ada", LimitsEntry(*wanted))
    return tx.version


async def budget(database: Database, now: datetime.datetime = NOW, **terms: Any) -> tuple[Budget, int | None]:
    async with database.begin(COMMAND) as tx:
        row = await caps.set_budget(tx, "ada", msgspec.structs.replace(TERMS, **terms), now)
    return row, tx.version


async def use(database: Database, tokens: int) -> None:
    async with database.engine.begin() as connection:
        await connection.execute(text("UPDATE budgets SET tokens_used = tokens_used + :n"), {"n": tokens})


async def test_limits_replace_all_three(access: Access, database: Database) -> None:
    assert await limit(database, 60, None, 4) is not None
    assert await limit(database, 60, None, 4) is None
    assert await limit(database, None, 1000) is not None
    kept = "SELECT requests_per_min, tokens_per_min, max_concurrent FROM limits"
    assert await access.rows(kept) == [(None, 1000, None)]
    assert await limit(database) is not None
    assert await limit(database) is None
    assert await access.rows(kept) == []
    changes = [row.changes for row in await access.rows("SELECT changes FROM audit_events ORDER BY id")][1:]
    assert changes == [
        {"requests_per_min": {"before": None, "after": 60}, "max_concurrent": {"before": None, "after": 4}},
        {
            "requests_per_min": {"before": 60, "after": None},
            "tokens_per_min": {"before": None, "after": 1000},
            "max_concurrent": {"before": 4, "after": None},
        },
        {"tokens_per_min": {"before": 1000, "after": None}},
    ]


async def test_first_caps_that_are_set_at_once_wait_for_each_other(
    access: Access, database: Database
) -> None:
    versions = await asyncio.gather(*(limit(database, 60) for _ in range(4)))
    assert len([version for version in versions if version is not None]) == 1
    made = await asyncio.gather(*(budget(database) for _ in range(4)))
    assert len({row.id for row, _ in made}) == 1
    assert len([version for _, version in made if version is not None]) == 1


async def test_a_budget_replaces_its_terms_and_keeps_what_was_used(database: Database) -> None:
    row, version = await budget(database)
    assert version is not None
    assert (row.window_start.isoformat(), row.window_end.isoformat()) == (
        "2026-03-01T00:00:00+00:00",
        "2026-04-01T00:00:00+00:00",
    )
    await use(database, 700)
    row, version = await budget(database, tokens_total=None, cost_total_micros=5, window="daily")
    assert version is not None
    assert (row.tokens_used, row.window_start.day, row.window_end.day) == (700, 15, 16)


async def test_the_same_terms_are_no_change_however_the_instant_is_written(database: Database) -> None:
    start = datetime.datetime(2026, 3, 1, 9, tzinfo=UTC)
    elsewhere = start.astimezone(datetime.timezone(datetime.timedelta(hours=14)))
    assert (await budget(database, starts_at=start))[1] is not None
    assert (await budget(database, starts_at=elsewhere))[1] is None
    assert (await budget(database, starts_at=start))[1] is None


async def test_what_was_used_in_a_window_that_has_ended_is_not_carried_into_the_next(
    database: Database,
) -> None:
    await budget(database)
    await use(database, 1000)
    row, _ = await budget(database, NOW + datetime.timedelta(days=10))
    assert row.tokens_used == 1000
    row, _ = await budget(database, NOW + datetime.timedelta(days=20))
    assert (row.tokens_used, row.window_start.month) == (0, 4)


async def test_what_is_used_meanwhile_is_not_overwritten(database: Database) -> None:
    await budget(database)
    await use(database, 100)
    async with database.engine.begin() as connection:
        await connection.execute(text("UPDATE budgets SET tokens_used = tokens_used + 50"))
        changing = asyncio.create_task(budget(database, tokens_total=9))
        await blocked(database)
    assert (await changing)[0].tokens_used == 150


@pytest.mark.parametrize(
    ("terms", "field"),
    [
        ({"tokens_total": None}, "tokens_total"),
        ({"timezone": "Mars/Olympus"}, "timezone"),
        ({"timezone": "../../etc/passwd"}, "timezone"),
        ({"starts_at": datetime.datetime(9999, 12, 31, 23, tzinfo=UTC)}, "starts_at"),
        ({"starts_at": datetime.datetime(1, 1, 1, tzinfo=UTC), "timezone": "America/Lima"}, "starts_at"),
    ],
)
async def test_terms_that_are_refused(
    access: Access, database: Database, terms: dict[str, Any], field: str
) -> None:
    with pytest.raises(Invalid) as refused:
        await budget(database, **terms)
    assert refused.value.field == field
    assert await access.rows("SELECT 1 FROM budgets") == []


async def test_resetting_is_no_content_and_deleting_is(access: Access, database: Database) -> None:
    await budget(database)
    await use(database, 700)
    async with database.begin(COMMAND) as reset:
        assert (await caps.reset_budget(reset, "ada")).tokens_used == 0
    async with database.begin(COMMAND) as dropped:
        await caps.drop_budget(dropped, "ada")
    assert reset.version is None
    assert dropped.version is not None
    for gone in (caps.drop_budget, caps.reset_budget):
        with pytest.raises(NotFound) as refused:
            async with database.begin(COMMAND) as tx:
                await gone(tx, "ada")
        assert refused.value.code == "budget_not_found"
    assert (await access.audited())[1:] == ["budget.set", "budget.reset", "budget.delete"]
