"""The usage tables in the migrated schema."""

from __future__ import annotations

from fastllm_control.tables.usage import GatewayRejection, UsageEvent, UsageRollup
from fastllm_shared.usage import UsageEvent as WireEvent
from tests.fakes.usage import opened, rows_of


def test_everything_that_is_sent_has_a_column() -> None:
    assert {column.key for column in UsageEvent.__table__.columns} == set(WireEvent.__struct_fields__)


def test_usage_hangs_on_nothing_that_may_be_deleted() -> None:
    for table in (UsageEvent, UsageRollup, GatewayRejection):
        assert not table.__table__.foreign_keys


async def test_partitions_by_the_time_in_the_id_with_a_default(database_url: str) -> None:
    async with opened(database_url) as database:
        [(key,)] = await rows_of(database, "SELECT pg_get_partkeydef('usage_events'::regclass)")
        found = await rows_of(
            database,
            "SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE relispartition AND relkind = 'r'",
        )
    assert key == "RANGE (id)"
    assert [row[0] for row in found].count("DEFAULT") == 1
    assert len(found) == 3
