"""SQL of roles."""

from __future__ import annotations

from fastllm_control.access import Permission
from fastllm_control.repositories import roles
from fastllm_control.transaction import Database
from fastllm_shared.ids import uuid7
from tests.fakes.access import COMMAND, Access

GRANT = Permission("model:invoke", "model/a")


async def test_found_by_id_and_by_name(access: Access, database: Database) -> None:
    await access.role("team/a")
    async with database.read() as session:
        by_name = await roles.find(session, "team/a")
        assert by_name is not None
        assert await roles.find(session, str(by_name.id)) is by_name
        assert await roles.find(session, str(by_name.id).upper()) is by_name
        for absent in ("team", "TEAM/A", str(uuid7()), ""):
            assert await roles.find(session, absent) is None


async def test_pages(access: Access, database: Database) -> None:
    for number in range(3):
        await access.role(f"r-{number}")
    async with database.read() as session:
        everything = await roles.page(session, after=None, limit=100)
        assert [row.name for row in everything][-3:] == ["r-0", "r-1", "r-2"]
        found = await roles.page(session, after=everything[-3].id, limit=2)
        assert [row.name for row in found] == ["r-1", "r-2"]
        assert await roles.page(session, after=everything[-1].id, limit=1) == []


async def test_permissions_of_many_in_order_and_only_those_of_the_closed_list(
    access: Access, database: Database
) -> None:
    await access.role("full", ("usage:read", "*"), ("model:invoke", "model/b"), ("model:invoke", "model/a"))
    await access.role("empty")
    async with database.engine.begin() as connection:
        await connection.exec_driver_sql(
            "INSERT INTO role_permissions SELECT id, 'future:verb', '*' FROM roles WHERE name = 'full'"
        )
    async with database.read() as session:
        full, empty = await roles.find(session, "full"), await roles.find(session, "empty")
        assert full is not None
        assert empty is not None
        found = await roles.permissions(session, [full.id, empty.id])
        assert await roles.permissions(session, []) == {}
    assert found == {
        full.id: [GRANT, Permission("model:invoke", "model/b"), Permission("usage:read")],
        empty.id: [],
    }


async def test_adding_and_dropping_say_whether_anything_happened(access: Access, database: Database) -> None:
    await access.role("team")
    async with database.begin(COMMAND) as tx:
        row = await roles.find(tx.session, "team")
        assert row is not None
        assert [await roles.add_permission(tx.session, row.id, GRANT) for _ in range(2)] == [True, False]
        other = Permission("model:invoke", "model/b")
        assert await roles.drop_permission(tx.session, row.id, other) is False
        assert [await roles.drop_permission(tx.session, row.id, GRANT) for _ in range(2)] == [True, False]


async def test_counting_holders(access: Access, database: Database) -> None:
    await access.role("team")
    await access.principal("ada", "team", "viewer")
    await access.principal("bob", "team")
    async with database.read() as session:
        row = await roles.find(session, "team")
        assert row is not None
        assert await roles.count_holders(session, row.id) == 2
        assert await roles.count_holders(session, uuid7()) == 0
