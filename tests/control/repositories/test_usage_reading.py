"""How usage is found: which partitions and indexes Postgres uses."""

from __future__ import annotations

import datetime

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from fastllm_control.partitions import ensure, name_of, week_of
from fastllm_control.repositories.usage_reading import SHOWN, Filters, conditions
from fastllm_control.services.usage import EventRow
from fastllm_control.tables.usage import UsageEvent
from fastllm_control.transaction import Database
from tests.fakes.usage import PROXY, opened

NOW = datetime.datetime(2031, 3, 5, 9, 30, tzinfo=datetime.UTC)


async def plan_of(database: Database, filters: Filters) -> str:
    query = sa.select(UsageEvent.id).where(*conditions(filters)).order_by(UsageEvent.id.desc()).limit(10)
    written = str(query.compile(dialect=postgresql.dialect(), compile_kwargs={"literal_binds": True}))  # type: ignore[no-untyped-call]
    async with database.read() as session:
        await session.execute(sa.text("SET LOCAL enable_seqscan = off"))
        return "\n".join((await session.execute(sa.text(f"EXPLAIN {written}"))).scalars())


def test_the_columns_are_those_of_a_row_in_its_order() -> None:
    assert tuple(column.key for column in SHOWN) == EventRow.__struct_fields__


async def test_a_range_of_time_passes_over_all_other_weeks(database_url: str) -> None:
    async with opened(database_url) as database:
        async with database.begin(PROXY) as tx:
            await ensure(tx.session, NOW)
        hour = datetime.timedelta(hours=1)
        plan = await plan_of(database, Filters(since=NOW, until=NOW + hour))
    assert name_of(week_of(NOW)) in plan
    assert name_of(week_of(NOW) + datetime.timedelta(days=7)) not in plan
    assert name_of(week_of(datetime.datetime.now(datetime.UTC))) not in plan


async def test_newest_first_needs_no_sort_and_a_principal_has_its_index(database_url: str) -> None:
    async with opened(database_url) as database:
        everything = await plan_of(database, Filters())
        of_one = await plan_of(database, Filters(principal="0190a000-0000-7000-8000-000000000001"))
        of_a_model = await plan_of(database, Filters(model="assistant"))
    for plan in (everything, of_one, of_a_model):
        assert "Sort  (" not in plan
    assert "_pkey" in everything
    assert "principal_id_id_idx" in of_one
    assert "model_id_idx" in of_a_model
