"""Who is behind a session or a key."""

from __future__ import annotations

import datetime

import pytest

from fastllm_control.access import Permission
from fastllm_control.repositories import actors
from fastllm_control.repositories.actors import Identity
from fastllm_control.tables.access import Session
from fastllm_control.transaction import Database
from fastllm_shared.ids import uuid7
from fastllm_shared.keys import digest_of
from fastllm_shared.snapshot import Scope
from tests.fakes.access import COMMAND, Access

HOUR = datetime.timedelta(hours=1)


async def by_key(
    access: Access, key: str, later: datetime.timedelta = datetime.timedelta()
) -> Identity | None:
    async with access.database.read() as session:
        return await actors.by_key(session, digest_of(key), access.now + later)


@pytest.mark.parametrize("scope", ["invoke", "admin"])
async def test_a_key_with_all_that_its_holder_may(access: Access, scope: Scope) -> None:
    await access.role("a", ("model:invoke", "model/a"), ("usage:read", "*"))
    ada = await access.principal("ada", "a", "viewer")
    made = await access.key("ada", scope)
    assert await by_key(access, made.key) == Identity(
        made.id,
        ada.principal_id,  # type: ignore[arg-type]
        "ada",
        scope,
        frozenset(
            {Permission("model:invoke", "model/a"), Permission("usage:read"), Permission("config:read")}
        ),
    )


async def test_a_holder_of_nothing_is_somebody_all_the_same(access: Access) -> None:
    await access.principal("ada")
    found = await by_key(access, (await access.key("ada")).key)
    assert found is not None
    assert found.permissions == frozenset()


async def test_keys_that_prove_nothing(access: Access, database: Database) -> None:
    await access.principal("ada")
    expiring = await access.key("ada", expires_at=access.now + HOUR)
    revoked = await access.key("ada")
    async with database.engine.begin() as connection:
        await connection.exec_driver_sql(f"UPDATE api_keys SET disabled = true WHERE id = '{revoked.id}'")
    assert await by_key(access, expiring.key) is not None
    assert await by_key(access, expiring.key, HOUR) is None
    assert await by_key(access, revoked.key) is None
    assert await by_key(access, expiring.key[:-1]) is None
    assert await by_key(access, "") is None


async def test_a_session_until_it_expires_and_never_as_a_key(access: Access, database: Database) -> None:
    ada = await access.principal("ada", "viewer")
    assert ada.principal_id is not None
    row = Session(
        id=uuid7(), principal_id=ada.principal_id, digest=digest_of("token"), expires_at=access.now + HOUR
    )
    async with database.begin(COMMAND) as tx:
        tx.session.add(row)
    async with database.read() as session:
        found = await actors.by_session(session, digest_of("token"), access.now)
        assert found is not None
        assert (found.proof_id, found.principal_id, found.scope) == (row.id, ada.principal_id, "admin")
        assert found.permissions == ada.permissions
        assert await actors.by_session(session, digest_of("token"), access.now + HOUR) is None
        assert await actors.by_key(session, digest_of("token"), access.now) is None
    key = await access.key("ada", "admin")
    async with database.read() as session:
        assert await actors.by_session(session, digest_of(key.key), access.now) is None


async def test_a_verb_of_a_newer_release_is_no_permission_here(access: Access, database: Database) -> None:
    await access.role("team", ("usage:read", "*"))
    await access.principal("ada", "team")
    async with database.engine.begin() as connection:
        await connection.exec_driver_sql(
            "INSERT INTO role_permissions SELECT id, 'future:verb', '*' FROM roles WHERE name = 'team'"
        )
    found = await by_key(access, (await access.key("ada")).key)
    assert found is not None
    assert found.permissions == {Permission("usage:read")}
