"""API keys: made, rotated, revoked; by whom; and what is kept of them."""

from __future__ import annotations

import asyncio
import datetime
from uuid import UUID

import pytest

from fastllm_control.access import Actor
from fastllm_control.errors import Conflict, Forbidden, Invalid, NotFound
from fastllm_control.repositories import actors
from fastllm_control.services import keys
from fastllm_control.services.keys import NewKey
from fastllm_control.transaction import Database
from fastllm_shared.ids import uuid7
from fastllm_shared.keys import digest_of
from fastllm_shared.snapshot import Scope
from tests.fakes.access import COMMAND, Access

DAY = datetime.timedelta(days=1)


async def create(database: Database, actor: Actor, principal: str, scope: Scope, access: Access) -> NewKey:
    async with database.begin(actor) as tx:
        made = await keys.create(tx, principal, "k", scope, None, access.now)
    assert tx.version is not None
    return made


async def rotate(
    access: Access, key: NewKey, grace_seconds: int = 0, *, actor: Actor = COMMAND, later: float = 0
) -> NewKey:
    now = access.now + datetime.timedelta(seconds=later)
    async with access.database.begin(actor) as tx:
        return await keys.rotate(tx, key.id, grace_seconds, now)


async def valid(access: Access, key: NewKey, later: float = 0) -> bool:
    now = access.now + datetime.timedelta(seconds=later)
    async with access.database.read() as session:
        return await actors.by_key(session, digest_of(key.key), now) is not None


async def test_a_key_is_kept_nowhere(access: Access) -> None:
    await access.principal("ada")
    made = await access.key("ada", expires_at=access.now + DAY)
    assert made.key.startswith(made.prefix)
    for table in ("api_keys", "audit_events"):
        for (row,) in await access.rows(f"SELECT row_to_json(t)::text FROM {table} t"):
            assert made.key[11:] not in row
            assert digest_of(made.key).hex() not in row or table == "api_keys"
    assert made.key not in repr(made)
    assert await access.rows("SELECT digest, created_by, disabled FROM api_keys") == [
        (digest_of(made.key), "tests", False)
    ]


async def test_expiry(access: Access) -> None:
    await access.principal("ada")
    made = await access.key("ada", expires_at=access.now + DAY)
    assert await valid(access, made, later=86_399)
    assert not await valid(access, made, later=86_400)
    for past in (access.now, access.now - DAY):
        with pytest.raises(Invalid) as refused:
            await access.key("ada", expires_at=past)
        assert refused.value.field == "expires_at"
    with pytest.raises(Invalid) as unknown:
        await access.key("nobody")
    assert (unknown.value.code, unknown.value.field) == ("principal_not_found", "principal_id")


async def test_nobody_mints_an_admin_key_of_one_who_holds_more(access: Access, database: Database) -> None:
    await access.admin("root")
    await access.principal("team", "inference")
    operator = await access.principal("operator", "operator")
    with pytest.raises(Forbidden, match="access:write"):
        await create(database, operator, "root", "admin", access)
    # Serving a team is what operators are for, though they may invoke nothing themselves.
    await create(database, operator, "team", "invoke", access)
    await create(database, operator, "team", "admin", access)
    await create(database, operator, "operator", "admin", access)
    await create(database, operator, "root", "invoke", access)


async def test_rotating_an_admin_key_needs_what_making_it_needs(access: Access) -> None:
    await access.admin("root")
    operator = await access.principal("operator", "operator")
    key = await access.key("root", "admin")
    with pytest.raises(Forbidden):
        await rotate(access, key, 60, actor=operator)
    assert await valid(access, key, later=120)


async def test_both_keys_work_during_the_grace(access: Access) -> None:
    await access.principal("ada")
    old = await access.key("ada")
    new = await rotate(access, old, 60)
    assert (new.name, new.scope, new.expires_at) == (old.name, old.scope, None)
    assert [await valid(access, key, later=59) for key in (old, new)] == [True, True]
    assert [await valid(access, key, later=60) for key in (old, new)] == [False, True]


async def test_a_rotation_is_one_event_and_names_the_successor(access: Access) -> None:
    await access.principal("ada")
    old = await access.key("ada")
    graced = await rotate(access, old, 60)
    made = await rotate(access, graced)
    assert (await access.audited())[-3:] == ["key.create", "key.rotate", "key.rotate"]
    first, last = await access.rows(
        "SELECT changes FROM audit_events WHERE action = 'key.rotate' ORDER BY id"
    )
    assert set(first.changes) == {"expires_at", "successor"}
    assert set(last.changes) == {"expires_at", "disabled", "successor"}
    assert last.changes["successor"]["after"] == {
        "id": str(made.id),
        "prefix": made.prefix,
        "expires_at": None,
    }


async def test_without_grace_the_old_key_ends_at_once(access: Access) -> None:
    await access.principal("ada")
    old = await access.key("ada")
    new = await rotate(access, old)
    assert [await valid(access, key) for key in (old, new)] == [False, True]
    with pytest.raises(Conflict) as refused:
        await rotate(access, old)
    assert refused.value.code == "key_not_valid"


async def test_a_grace_never_lengthens_a_life(access: Access) -> None:
    await access.principal("ada")
    old = await access.key("ada", expires_at=access.now + DAY)
    await rotate(access, old, 10 * 86_400)
    assert not await valid(access, old, later=86_400)


async def test_a_successor_lives_as_long_as_its_predecessor_was_to(access: Access) -> None:
    await access.principal("ada")
    old = await access.key("ada", expires_at=access.now + 90 * DAY)
    new = await rotate(access, old, later=80 * 86_400)
    assert new.expires_at is not None
    assert abs(new.expires_at - (access.now + 170 * DAY)) < datetime.timedelta(minutes=5)


async def test_a_key_to_the_end_of_time_can_be_rotated(access: Access) -> None:
    await access.principal("ada")
    end = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)
    old = await access.key("ada", expires_at=end)
    assert (await rotate(access, old, later=3600)).expires_at == end


async def test_two_rotations_at_once_without_grace_make_one_successor(access: Access) -> None:
    await access.principal("ada")
    old = await access.key("ada")
    done = await asyncio.gather(*(rotate(access, old) for _ in range(3)), return_exceptions=True)
    assert sorted(type(outcome).__name__ for outcome in done) == ["Conflict", "Conflict", "NewKey"]
    assert await access.rows("SELECT count(*) FROM api_keys") == [(2,)]


async def test_revoking_is_for_good_and_only_once(access: Access, database: Database) -> None:
    await access.principal("ada")
    made = await access.key("ada")

    async def revoke(key_id: UUID) -> int | None:
        async with database.begin(COMMAND) as tx:
            await keys.revoke(tx, key_id, access.now)
        return tx.version

    versions = await asyncio.gather(*(revoke(made.id) for _ in range(3)))
    assert len([version for version in versions if version is not None]) == 1
    assert not await valid(access, made)
    assert (await access.audited()).count("key.revoke") == 1
    for absent in (rotate(access, made), revoke(uuid7())):
        with pytest.raises((Conflict, NotFound)):
            await absent
    assert await access.rows("SELECT disabled FROM api_keys") == [(True,)]
