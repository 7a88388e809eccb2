"""Nobody hands out more than they hold, and the last way of administering stays."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import get_args

import pytest
from sqlalchemy import text

from fastllm_control.access import Actor, Permission, Verb
from fastllm_control.errors import Conflict, Forbidden
from fastllm_control.repositories import principals as repository
from fastllm_control.services import keys, principals, roles
from fastllm_control.services.grants import covers, refuse_against_stronger, refuse_more_than_held
from fastllm_control.transaction import Transaction
from tests.fakes.access import COMMAND, Access
from tests.fakes.database import blocked

ONE, ALL = Permission("model:invoke", "model/a"), Permission("model:invoke", "model/*")


@pytest.mark.parametrize(
    ("held", "wanted", "covered"),
    [
        ([ONE], ONE, True),
        ([ALL], ONE, True),
        ([ONE], ALL, False),
        ([ONE], Permission("model:invoke", "model/a/b"), False),
        ([Permission("model:invoke", "*")], ONE, False),
        ([Permission("key:create")], Permission("key:create"), True),
        ([Permission("key:create")], Permission("key:revoke"), False),
        ([], ONE, False),
    ],
)
def test_what_covers_what(held: list[Permission], wanted: Permission, covered: bool) -> None:
    assert covers(held, wanted) is covered


def test_what_says_nothing_of_administering_makes_nobody_stronger() -> None:
    clerk = Actor(name="clerk", via="key", permissions=frozenset({Permission("access:write")}))
    refuse_against_stronger(clerk, [ALL, Permission("access:write")], "deleting")
    with pytest.raises(Forbidden, match=r"deleting takes .*: config:write on \*$"):
        refuse_against_stronger(clerk, [ALL, Permission("config:write")], "deleting")
    refuse_against_stronger(COMMAND, [Permission("config:write")], "deleting")


def test_the_refusal_names_all_that_is_missing() -> None:
    actor = Actor(name="ada", via="session", permissions=frozenset({Permission("usage:read")}))
    wanted = [Permission("usage:read"), ONE, Permission("access:write")]
    with pytest.raises(Forbidden, match=r"access:write on \*, model:invoke on model/a$") as refused:
        refuse_more_than_held(actor, wanted, "this")
    assert refused.value.code == "more_than_held"
    refuse_more_than_held(actor, wanted[:1], "this")
    refuse_more_than_held(COMMAND, wanted, "this")


Removal = Callable[[Access, Transaction], Awaitable[object]]
REMOVALS: dict[str, Removal] = {
    "its role": lambda access, tx: principals.take_role(tx, "ada", "administrators", access.now),
    "itself": lambda access, tx: principals.delete(tx, "ada", access.now),
    "the role": lambda access, tx: roles.delete(tx, "administrators", access.now),
    "a permission": lambda access, tx: roles.drop_permission(
        tx, "administrators", Permission("access:write"), access.now
    ),
}


async def only_administrator(access: Access) -> None:
    """Ada, by a role that may be changed, with a password; and others who cannot administer everything."""
    verbs = [verb for verb in get_args(Verb) if verb != "model:invoke"]
    await access.role("administrators", *((verb, "*") for verb in verbs))
    await access.principal("ada", "administrators", password_hash="$argon2id$x")
    await access.principal("cannot prove it", "admin")
    await access.principal("operates", "operator", password_hash="$argon2id$x")
    await access.key((await access.principal("only invokes", "admin")).name, "invoke")


@pytest.mark.parametrize("removal", REMOVALS.values(), ids=REMOVALS)
async def test_the_last_administrator_cannot_lose(access: Access, removal: Removal) -> None:
    await only_administrator(access)
    before = await access.version()
    with pytest.raises(Conflict) as refused:
        async with access.database.begin(COMMAND) as tx:
            await removal(access, tx)
    assert refused.value.code == "last_administrator"
    assert await access.version() == before
    async with access.database.read() as session:
        assert await repository.count_administering(session, access.now) == 1
    await access.key("cannot prove it", "admin")
    async with access.database.begin(COMMAND) as tx:
        await removal(access, tx)


async def test_the_last_admin_key_cannot_be_revoked_and_an_expired_one_does_not_count(access: Access) -> None:
    await access.principal("robot", "admin", kind="service_account")
    kept = await access.key("robot", "admin")
    async with access.database.begin(COMMAND) as tx:
        await tx.session.execute(
            text("UPDATE api_keys SET expires_at = :now WHERE id = :id"),
            {"now": access.now, "id": (await access.key("robot", "admin")).id},
        )
    with pytest.raises(Conflict):
        async with access.database.begin(COMMAND) as tx:
            await keys.revoke(tx, kept.id, access.now)
    async with access.database.begin(COMMAND) as tx:
        successor = await keys.rotate(tx, kept.id, 0, access.now)
    assert successor.scope == "admin"


async def test_the_last_who_may_grant_any_model_stays(access: Access) -> None:
    """Others may do everything else: without `model/*` they could never give anybody a model."""
    await access.admin("ada")
    await access.role("rest", *((verb, "*") for verb in get_args(Verb) if verb != "model:invoke"))
    await access.principal("bob", "rest", password_hash="$argon2id$x")
    with pytest.raises(Conflict):
        async with access.database.begin(COMMAND) as tx:
            await principals.take_role(tx, "ada", "admin", access.now)
    async with access.database.begin(COMMAND) as tx:
        await principals.delete(tx, "bob", access.now)


async def test_the_last_who_may_write_access_stays_though_nobody_may_everything(access: Access) -> None:
    await access.role("clerks", ("access:write", "*"))
    await access.principal("ada", "clerks", password_hash="$argon2id$x")
    await access.principal("bob", "operator", password_hash="$argon2id$x")
    with pytest.raises(Conflict):
        async with access.database.begin(COMMAND) as tx:
            await roles.drop_permission(tx, "clerks", Permission("access:write"), access.now)
    async with access.database.begin(COMMAND) as tx:
        await principals.delete(tx, "bob", access.now)


async def test_where_nobody_administers_nothing_is_in_the_way(access: Access) -> None:
    await access.principal("ada", "viewer")
    async with access.database.begin(COMMAND) as tx:
        await principals.delete(tx, "ada", access.now)


async def test_two_removals_side_by_side_cannot_each_leave_the_other(access: Access) -> None:
    await access.admin("ada")
    await access.admin("bob")

    async def second() -> None:
        async with access.database.begin(COMMAND) as tx:
            await principals.delete(tx, "bob", access.now)

    async with access.database.begin(COMMAND) as first:
        await principals.take_role(first, "ada", "admin", access.now)
        waiting = asyncio.create_task(second())
        await blocked(access.database)
    with pytest.raises(Conflict) as refused:
        await waiting
    assert refused.value.code == "last_administrator"
    assert (await access.actor("bob")).may("access:write")
