"""SQL of principals: who is who, who holds what, and who counts as able to administer."""

from __future__ import annotations

import asyncio
import datetime

import pytest

from fastllm_control.access import Permission
from fastllm_control.repositories import principals
from fastllm_control.transaction import Database
from fastllm_shared.ids import uuid7
from tests.fakes.access import COMMAND, Access
from tests.fakes.database import blocked

HASH = "$argon2id$x"


async def administering(access: Access, later: float = 0) -> int:
    async with access.database.read() as session:
        now = access.now + datetime.timedelta(seconds=later)
        return await principals.count_administering(session, now)


async def test_found_by_id_or_name_and_by_name_only(access: Access, database: Database) -> None:
    ada = await access.principal("ada")
    async with database.read() as session:
        found = await principals.find(session, "ada")
        assert found is not None
        assert await principals.find(session, str(ada.principal_id)) is found
        assert await principals.by_name(session, "ada") is found
        assert await principals.by_name(session, str(ada.principal_id)) is None
        assert await principals.find(session, "Ada") is None


async def test_pages_with_roles_by_kind(access: Access, database: Database) -> None:
    await access.principal("ada", "viewer", "inference")
    await access.principal("robot", kind="service_account")
    await access.principal("bob")
    async with database.read() as session:
        found = await principals.page(session, after=None, limit=3)
        assert [(row.name, roles) for row, roles in found] == [
            ("ada", ["inference", "viewer"]),
            ("robot", []),
            ("bob", []),
        ]
        users = await principals.page(session, after=found[0][0].id, limit=2, kind="user")
        assert [row.name for row, _ in users] == ["bob"]


async def test_permissions_are_the_union_of_roles(access: Access, database: Database) -> None:
    await access.role("a", ("model:invoke", "model/a"), ("usage:read", "*"))
    ada = await access.principal("ada", "a", "viewer")
    assert ada.principal_id is not None
    async with database.read() as session:
        assert await principals.role_names(session, ada.principal_id) == ["a", "viewer"]
        assert await principals.permissions(session, ada.principal_id) == {
            Permission("model:invoke", "model/a"),
            Permission("usage:read"),
            Permission("config:read"),
        }
        assert await principals.permissions(session, uuid7()) == frozenset()


async def test_who_can_administer(access: Access) -> None:
    assert await administering(access) == 0
    await access.principal("cannot prove it", "admin")
    await access.principal("holds too little", "operator", password_hash=HASH)
    await access.role("access only", ("access:write", "*"))
    await access.principal("clerk", "access only", password_hash=HASH)
    assert await administering(access) == 0
    # Two roles that make up everything together, each permission counted once.
    await access.principal("ada", "access only", "operator", "viewer", password_hash=HASH)
    assert await administering(access) == 1
    await access.key("cannot prove it", "invoke")
    assert await administering(access) == 1
    await access.key("cannot prove it", "admin", expires_at=access.now + datetime.timedelta(hours=1))
    await access.key("cannot prove it", "admin", expires_at=access.now + datetime.timedelta(hours=2))
    assert [await administering(access, hours * 3600) for hours in (0, 1, 2)] == [2, 2, 1]


@pytest.mark.parametrize("change", ["UPDATE principals SET password_hash = 'y'", "DELETE FROM principals"])
async def test_what_is_held_unchanged_cannot_change_meanwhile(
    access: Access, database: Database, change: str
) -> None:
    ada = await access.principal("ada", password_hash=HASH)
    assert ada.principal_id is not None

    async def write() -> None:
        async with database.engine.begin() as connection:
            await connection.exec_driver_sql(change)

    async with database.begin(COMMAND) as tx:
        assert await principals.unchanged(tx.session, ada.principal_id) is not None
        async with database.begin(COMMAND) as other:  # two logins of one person do not wait for each other
            assert await principals.unchanged(other.session, ada.principal_id) is not None
        writing = asyncio.create_task(write())
        await blocked(database)
    await writing
    async with database.begin(COMMAND) as tx:
        found = await principals.unchanged(tx.session, ada.principal_id)
    assert found is None or found.password_hash == "y"


async def test_a_lock_on_a_principal_holds_up_another_but_not_a_new_key_of_it(
    access: Access, database: Database
) -> None:
    ada = await access.principal("ada")
    assert ada.principal_id is not None
    identity = ada.principal_id

    async def lock() -> None:
        async with database.begin(COMMAND) as tx:
            await principals.lock(tx.session, identity)

    async with database.begin(COMMAND) as tx:
        await principals.lock(tx.session, identity)
        await access.key("ada")
        waiting = asyncio.create_task(lock())
        await blocked(database)
    await waiting


async def test_the_lock_of_administering_is_one_for_all(database: Database) -> None:
    async def take() -> None:
        async with database.begin(COMMAND) as tx:
            await principals.lock_administering(tx.session)

    async with database.begin(COMMAND) as tx:
        await principals.lock_administering(tx.session)
        await principals.lock_administering(tx.session)
        waiting = asyncio.create_task(take())
        await blocked(database)
    await waiting


async def test_holding_and_dropping_say_whether_anything_happened(access: Access, database: Database) -> None:
    ada = await access.principal("ada", "viewer")
    assert ada.principal_id is not None
    ((role_id,),) = await access.rows("SELECT id FROM roles WHERE name = 'inference'")
    async with database.begin(COMMAND) as tx:
        held = [await principals.hold_role(tx.session, ada.principal_id, role_id) for _ in range(2)]
        dropped = [await principals.drop_role(tx.session, ada.principal_id, role_id) for _ in range(2)]
    assert (held, dropped) == ([True, False], [True, False])
