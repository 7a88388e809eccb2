"""Pools and their members, as rows."""

from __future__ import annotations

from fastllm_control.repositories import pools
from fastllm_control.tables.configuration import Pool
from fastllm_control.transaction import Database
from fastllm_shared.ids import uuid7
from tests.fakes.configuration import ACTOR


async def test_members_are_replaced_and_read_back_in_their_order(database: Database) -> None:
    async with database.begin(ACTOR) as tx:
        row = Pool(id=uuid7(), name="local", policy="weighted")
        tx.session.add(row)
        await tx.session.flush()
        for names in (("b", "a", "c"), ("c", "a")):
            await pools.replace_members(tx.session, row.id, [(name, None, 1) for name in names])
            found = (await pools.members_of(tx.session, [row.id]))[row.id]
            assert tuple(member.provider_model for member in found) == names
        assert [one.name for one in await pools.page(tx.session, 2, None, "a")] == ["local"]
        assert await pools.page(tx.session, 2, row.id, None) == []
        assert await pools.backends(tx.session, [uuid7()]) == {}
        assert await pools.hold_backends(tx.session, [uuid7()]) == frozenset()
