"""Principals: made, renamed, given roles and passwords."""

from __future__ import annotations

import asyncio

import pytest

from fastllm_control.access import Actor, Permission
from fastllm_control.errors import Conflict, Forbidden, Invalid, NotFound
from fastllm_control.failures import refusal_of
from fastllm_control.services import principals
from fastllm_control.tables.configuration import RoutingRule
from fastllm_control.transaction import Database
from fastllm_shared.ids import uuid7
from tests.fakes.access import COMMAND, Access
from tests.fakes.configuration import Stock

HASH = "$argon2id$canary"


async def rename(database: Database, reference: str, name: str) -> int | None:
    async with database.begin(COMMAND) as tx:
        await principals.rename(tx, reference, name)
    return tx.version


async def give(database: Database, actor: Actor, reference: str, role: str) -> tuple[list[str], int | None]:
    async with database.begin(actor) as tx:
        held = await principals.give_role(tx, reference, role)
    return held, tx.version


async def set_password(database: Database, actor: Actor, reference: str) -> None:
    async with database.begin(actor) as tx:
        await principals.set_password(tx, reference, HASH)


async def test_a_new_principal_holds_nothing(access: Access) -> None:
    before = await access.version()
    made = await access.principal("ada")
    assert made.permissions == frozenset()
    assert await access.version() > before
    assert await access.rows("SELECT kind, password_hash FROM principals") == [("user", None)]


async def test_a_renamed_principal_keeps_all_that_it_had(access: Access, database: Database) -> None:
    ada = await access.principal("ada", "viewer")
    key = await access.key("ada")
    assert await rename(database, "ada", "ada lovelace") is not None
    again = await access.actor("ada lovelace")
    assert (again.principal_id, again.permissions) == (ada.principal_id, ada.permissions)
    assert await access.rows("SELECT principal_id FROM api_keys WHERE id = :id", id=key.id) == [
        (ada.principal_id,)
    ]
    assert await rename(database, str(ada.principal_id), "ada lovelace") is None
    assert (await access.audited())[-1] == "principal.update"
    assert (await access.audited()).count("principal.update") == 1


async def test_names_that_are_refused(access: Access, database: Database) -> None:
    await access.principal("ada")
    await access.principal("bob")
    for name, kind in (("bob", Conflict), (str(uuid7()), Invalid)):
        with pytest.raises(kind):
            await rename(database, "ada", name)
    with pytest.raises(NotFound):
        await rename(database, "carol", "dora")


async def test_two_who_take_the_same_name_at_once(access: Access, database: Database) -> None:
    await access.principal("ada")
    await access.principal("bob")
    done = await asyncio.gather(
        *(rename(database, name, "eve") for name in ("ada", "bob")), return_exceptions=True
    )
    (failed,) = [outcome for outcome in done if isinstance(outcome, Exception)]
    refused = failed if isinstance(failed, Conflict) else refusal_of(failed)
    assert isinstance(refused, Conflict)
    assert refused.field == "name"


async def test_roles_given_twice_and_taken_twice(access: Access, database: Database) -> None:
    await access.principal("ada", "viewer")
    held, version = await give(database, COMMAND, "ada", "inference")
    assert held == ["inference", "viewer"]
    assert version is not None
    assert await give(database, COMMAND, "ada", "inference") == (held, None)
    async with database.begin(COMMAND) as tx:
        assert await principals.take_role(tx, "ada", "inference", access.now) == ["viewer"]
    with pytest.raises(NotFound):
        async with database.begin(COMMAND) as tx:
            await principals.take_role(tx, "ada", "inference", access.now)
    with pytest.raises(Invalid, match="'nothing'"):
        await give(database, COMMAND, "ada", "nothing")


async def test_the_same_role_given_twice_at_once_is_one_change(access: Access, database: Database) -> None:
    await access.principal("ada")
    done = await asyncio.gather(*(give(database, COMMAND, "ada", "viewer") for _ in range(4)))
    assert [held for held, _ in done] == [["viewer"]] * 4
    assert len([version for _, version in done if version is not None]) == 1


async def test_nobody_gives_a_role_that_holds_more_than_they_do(access: Access, database: Database) -> None:
    await access.role("clerks", ("access:write", "*"), ("config:read", "*"), ("usage:read", "*"))
    clerk = await access.principal("clerk", "clerks")
    for role in ("admin", "operator", "inference"):
        with pytest.raises(Forbidden, match="do not hold"):
            await give(database, clerk, "clerk", role)
    assert (await give(database, clerk, "clerk", "viewer"))[0] == ["clerks", "viewer"]


async def test_nobody_takes_over_an_account_that_holds_more(access: Access, database: Database) -> None:
    """Setting somebody's password is becoming them."""
    await access.role("clerks", ("access:write", "*"))
    clerk = await access.principal("clerk", "clerks")
    await access.admin("root")
    await access.principal("idle")
    with pytest.raises(Forbidden):
        await set_password(database, clerk, "root")
    await set_password(database, clerk, "idle")
    await set_password(database, clerk, "clerk")
    passwords = await access.rows("SELECT password_hash FROM principals ORDER BY name")
    assert passwords == [(HASH,), (HASH,), ("$argon2id$of-root",)]


async def test_nobody_does_anything_to_those_who_hold_more(access: Access, database: Database) -> None:
    await access.role("clerks", ("access:write", "*"))
    clerk = await access.principal("clerk", "clerks")
    await access.admin("root")
    await access.admin("second")
    await access.principal("team", "inference")

    async def delete(name: str) -> None:
        async with database.begin(clerk) as tx:
            await principals.delete(tx, name, access.now)

    async def rename_to_x(name: str) -> None:
        async with database.begin(clerk) as tx:
            await principals.rename(tx, name, "x")

    async def take(name: str, role: str) -> None:
        async with database.begin(clerk) as tx:
            await principals.take_role(tx, name, role, access.now)

    for attempt in (delete("root"), rename_to_x("root"), take("root", "admin")):
        with pytest.raises(Forbidden) as refused:
            await attempt
        assert refused.value.code == "more_than_held"
    # To invoke models is nothing that a clerk must be able to do to look after those who can.
    await take("team", "inference")
    await rename_to_x("team")
    await delete("x")
    await delete("clerk")


async def test_rules_that_name_a_principal_follow_it(access: Access, database: Database) -> None:
    await access.principal("ada")
    model = await Stock(database).frontend("a")
    async with database.begin(COMMAND) as tx:
        for position, when in enumerate(({"principals": ["ada"], "stream": True}, {"roles": ["ada"]}, {})):
            tx.session.add(
                RoutingRule(id=uuid7(), frontend_model_id=model, position=position, conditions=when)
            )
    await rename(database, "ada", "grace")
    assert await access.rows("SELECT conditions FROM routing_rules ORDER BY position") == [
        ({"principals": ["grace"], "stream": True},),
        ({"roles": ["ada"]},),
        ({},),
    ]


async def test_a_password_is_neither_audited_nor_content(access: Access, database: Database) -> None:
    await access.principal("ada")
    before = await access.version()
    await set_password(database, COMMAND, "ada")
    assert await access.version() == before
    ((event,),) = await access.rows(
        "SELECT row_to_json(a)::text FROM audit_events a WHERE action = 'principal.set_password'"
    )
    assert "canary" not in event
    assert "(set)" in event


async def test_service_accounts_have_no_password(access: Access, database: Database) -> None:
    await access.principal("robot", kind="service_account")
    with pytest.raises(Invalid) as refused:
        await set_password(database, COMMAND, "robot")
    assert refused.value.code == "not_a_person"


async def test_deleting_takes_what_hangs_on_it(access: Access, database: Database) -> None:
    await access.principal("ada", "viewer")
    await access.key("ada")
    async with database.begin(COMMAND) as tx:
        await principals.delete(tx, "ada", access.now)
    assert tx.version is not None
    for table in ("principals", "api_keys", "principal_roles"):
        assert await access.rows(f"SELECT 1 FROM {table}") == []
    with pytest.raises(NotFound):
        async with database.begin(COMMAND) as tx:
            await principals.delete(tx, "ada", access.now)


async def test_a_permission_of_a_newer_release_is_none_here(access: Access, database: Database) -> None:
    await access.role("team", ("usage:read", "*"))
    async with database.engine.begin() as connection:
        await connection.exec_driver_sql(
            "INSERT INTO role_permissions SELECT id, 'future:verb', '*' FROM roles WHERE name = 'team'"
        )
    assert (await access.principal("ada", "team")).permissions == {Permission("usage:read")}
