"""Roles: what they hold, who may change it, and what of it is content."""

from __future__ import annotations

import asyncio

import pytest

from fastllm_control.access import Actor, Permission, Verb
from fastllm_control.errors import Conflict, Forbidden, Invalid, NotFound
from fastllm_control.failures import refusal_of
from fastllm_control.services import principals, roles
from fastllm_control.tables.configuration import RoutingRule
from fastllm_control.transaction import Database
from fastllm_shared.ids import uuid7
from tests.fakes.access import COMMAND, Access
from tests.fakes.configuration import Stock

GRANT_OF_A: tuple[Verb, str] = ("model:invoke", "model/a")
GRANT = Permission(*GRANT_OF_A)


async def add(database: Database, actor: Actor, role: str, permission: Permission) -> int | None:
    async with database.begin(actor) as tx:
        await roles.add_permission(tx, role, permission)
    return tx.version


async def test_a_new_role_is_no_content_until_it_is_given(access: Access, database: Database) -> None:
    async with database.begin(COMMAND) as tx:
        row = await roles.create(tx, "team")
    assert (tx.version, row.built_in) == (None, False)
    assert row.created_at is not None
    assert await add(database, COMMAND, "team", GRANT) is not None
    assert await add(database, COMMAND, str(row.id), GRANT) is None
    assert await access.audited() == ["role.create", "role.add_permission"]


async def test_only_permissions_to_call_models_are_content(access: Access, database: Database) -> None:
    await access.role("team")
    reading = Permission("config:read")
    assert await add(database, COMMAND, "team", reading) is None
    async with database.begin(COMMAND) as tx:
        await roles.drop_permission(tx, "team", reading, access.now)
    assert tx.version is None
    assert await add(database, COMMAND, "team", GRANT) is not None
    async with database.begin(COMMAND) as tx:
        await roles.drop_permission(tx, "team", GRANT, access.now)
    assert tx.version is not None
    assert (await access.audited())[-4:] == ["role.add_permission", "role.drop_permission"] * 2


async def test_dropping_what_is_not_held(access: Access, database: Database) -> None:
    await access.role("team", ("model:invoke", "model/*"))
    with pytest.raises(NotFound) as refused:
        async with database.begin(COMMAND) as tx:
            await roles.drop_permission(tx, "team", GRANT, access.now)
    assert refused.value.code == "permission_not_found"


async def test_nobody_puts_more_into_a_role_than_they_hold(access: Access, database: Database) -> None:
    """Otherwise one who may write access would write themselves everything else."""
    await access.role("clerks", ("access:write", "*"), ("model:invoke", "model/a"))
    clerk = await access.principal("clerk", "clerks")
    before = await access.version()
    for beyond in (Permission("config:write"), Permission("model:invoke", "model/*")):
        with pytest.raises(Forbidden) as refused:
            await add(database, clerk, "clerks", beyond)
        assert refused.value.code == "more_than_held"
    assert await access.version() == before
    await access.role("team")
    assert await add(database, clerk, "team", GRANT) is not None


async def rename(database: Database, actor: Actor, reference: str, name: str) -> int | None:
    async with database.begin(actor) as tx:
        assert (await roles.rename(tx, reference, name)).name == name
    return tx.version


async def test_a_renamed_role_keeps_holders_permissions_and_rules(access: Access, database: Database) -> None:
    await access.role("team", GRANT_OF_A)
    before = await access.principal("ada", "team")
    stock = Stock(database)
    model = await stock.frontend("a")
    async with database.begin(COMMAND) as tx:
        when = {"roles": ["other", "team"], "principals": ["team"]}
        tx.session.add(RoutingRule(id=uuid7(), frontend_model_id=model, position=0, conditions=when))
    assert await rename(database, COMMAND, "team", "team b") is not None
    assert (await access.actor("ada")).permissions == before.permissions == {GRANT}
    assert await access.rows("SELECT conditions FROM routing_rules") == [
        ({"roles": ["other", "team b"], "principals": ["team"]},)
    ]
    assert await rename(database, COMMAND, "team b", "team b") is None
    assert (await access.audited()).count("role.update") == 1


async def test_names_that_a_role_cannot_take(access: Access, database: Database) -> None:
    await access.role("team")
    await access.role("other")
    for name, kind in (("admin", Conflict), ("other", Conflict), (str(uuid7()), Invalid)):
        with pytest.raises(kind) as refused:
            await rename(database, COMMAND, "team", name)
        assert refused.value.field == "name"
    with pytest.raises(Conflict, match="built-in"):
        await rename(database, COMMAND, "viewer", "watchers")
    assert await rename(database, COMMAND, "viewer", "viewer") is None


async def test_nobody_changes_a_role_that_holds_more_than_they_do(access: Access, database: Database) -> None:
    await access.role("strong", ("config:write", "*"), ("access:write", "*"), ("model:invoke", "model/a"))
    await access.role("clerks", ("access:write", "*"))
    clerk = await access.principal("clerk", "clerks")
    await access.principal("ada", "strong")

    async def drop(permission: Permission) -> None:
        async with database.begin(clerk) as tx:
            await roles.drop_permission(tx, "strong", permission, access.now)

    async def delete(role: str) -> None:
        async with database.begin(clerk) as tx:
            await roles.delete(tx, role, access.now)

    for attempt in (
        drop(Permission("config:write")),
        delete("strong"),
        rename(database, clerk, "strong", "x"),
    ):
        with pytest.raises(Forbidden, match="config:write"):
            await attempt
    await drop(GRANT)
    await access.role("weak", ("access:write", "*"), ("model:invoke", "model/*"))
    await delete("weak")


@pytest.mark.parametrize("name", ["viewer", "admin"])
async def test_built_in_roles_do_not_change(access: Access, database: Database, name: str) -> None:
    with pytest.raises(Conflict):
        await add(database, COMMAND, name, GRANT)
    with pytest.raises(Conflict):
        async with database.begin(COMMAND) as tx:
            await roles.delete(tx, name, access.now)


async def test_names(access: Access, database: Database) -> None:
    await access.role("team/a")
    for name, kind in (("team/a", Conflict), (str(uuid7()), Invalid)):
        with pytest.raises(kind):
            await access.role(name)
    with pytest.raises(NotFound, match="'team/b'"):
        await add(database, COMMAND, "team/b", GRANT)


async def test_the_same_name_twice_at_once_is_one_role_and_one_conflict(access: Access) -> None:
    done = await asyncio.gather(*(access.role("team") for _ in range(2)), return_exceptions=True)
    (failed,) = [outcome for outcome in done if isinstance(outcome, Exception)]
    refused = failed if isinstance(failed, Conflict) else refusal_of(failed)
    assert isinstance(refused, Conflict)
    assert (refused.code, refused.field) == ("already_exists", "name")


async def test_a_deleted_role_is_taken_from_its_holders(access: Access, database: Database) -> None:
    await access.role("team", ("model:invoke", "model/a"))
    await access.principal("ada", "team", "viewer")
    async with database.begin(COMMAND) as tx:
        await roles.delete(tx, "team", access.now)
    assert tx.version is not None
    assert (await access.actor("ada")).permissions == {Permission("config:read"), Permission("usage:read")}
    ((changes,),) = await access.rows("SELECT changes FROM audit_events WHERE action = 'role.delete'")
    assert changes == {
        "permissions": {"before": ["model:invoke model/a"], "after": None},
        "holders": {"before": 1, "after": 0},
    }


async def test_a_role_that_is_given_while_it_is_deleted_is_held_by_nobody(
    access: Access, database: Database
) -> None:
    await access.role("team", ("model:invoke", "model/a"))
    await access.principal("ada")

    async def give() -> None:
        async with database.begin(COMMAND) as tx:
            await principals.give_role(tx, "ada", "team")

    async def delete() -> None:
        async with database.begin(COMMAND) as tx:
            await roles.delete(tx, "team", access.now)

    done = await asyncio.gather(give(), delete(), return_exceptions=True)
    for failed in [outcome for outcome in done if isinstance(outcome, Exception)]:
        assert isinstance(failed, Invalid) or isinstance(refusal_of(failed), Conflict), failed
    assert done[1] is None
    assert (await access.actor("ada")).permissions == frozenset()
