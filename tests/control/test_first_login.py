from __future__ import annotations

import datetime
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from argon2 import PasswordHasher
from sqlalchemy import text

from fastllm_control.access import Actor
from fastllm_control.config import DatabaseSettings
from fastllm_control.database import open_engine
from fastllm_control.first_login import ensure_first_login
from fastllm_control.kept_secrets import KeptSecrets
from fastllm_control.repositories import actors, keys, principals
from fastllm_control.security import Passwords, token_digest
from fastllm_control.services import keys as key_service
from fastllm_control.services import principals as people
from fastllm_control.transaction import Database

NOW = datetime.datetime(2026, 12, 1, tzinfo=datetime.UTC)
OPERATOR = Actor(name="test", via="command")


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    engine = open_engine(DatabaseSettings(database_url=database_url))
    yield Database(engine)
    await engine.dispose()


@pytest.fixture
def passwords() -> Passwords:
    return Passwords(PasswordHasher(time_cost=1, memory_cost=8, parallelism=1))


@pytest.fixture
def kept(tmp_path: Path) -> KeptSecrets:
    return KeptSecrets(tmp_path / "secrets")


async def test_the_first_run_makes_an_administrator_and_a_key_for_every_model(
    database: Database, passwords: Passwords, kept: KeptSecrets
) -> None:
    first = await ensure_first_login(database, passwords, kept, NOW)
    assert first.admin is not None
    assert first.api_key is not None
    async with database.read() as session:
        admin = await principals.by_name(session, "admin")
        assert admin is not None
        assert admin.kind == "user"
        assert await passwords.verify(admin.password_hash, first.admin.password)
        assert await principals.role_names(session, admin.id) == ["admin"]
        holder = await actors.by_key(session, token_digest(first.api_key), NOW)
        assert holder is not None
        assert (holder.name, holder.scope) == ("default", "invoke")
        assert {(one.verb, one.resource) for one in holder.permissions} == {("model:invoke", "model/*")}
    assert (kept.admin_password(), kept.api_key()) == (first.admin.password, first.api_key)


async def test_it_is_audited_and_a_version_of_its_own(
    database: Database, passwords: Passwords, kept: KeptSecrets
) -> None:
    first = await ensure_first_login(database, passwords, kept, NOW)
    assert first.admin is not None
    async with database.read() as session:
        rows = (
            await session.execute(text("SELECT actor, via, action, version, changes::text FROM audit_events"))
        ).all()
    assert {(row.actor, row.via) for row in rows} == {("fastllm up", "command")}
    assert {"principal.create", "key.create", "principal.set_password"} <= {row.action for row in rows}
    assert len({row.version for row in rows}) == 1
    assert first.admin.password not in str(rows)
    assert str(first.api_key) not in str(rows)


async def test_later_runs_make_nothing_and_know_the_same(
    database: Database, passwords: Passwords, kept: KeptSecrets
) -> None:
    first = await ensure_first_login(database, passwords, kept, NOW)
    assert await ensure_first_login(database, passwords, kept, NOW) == first
    async with database.read() as session:
        assert len(await principals.page(session, after=None, limit=10)) == 2


async def test_a_database_with_principals_is_left_as_it_is(
    database: Database, passwords: Passwords, kept: KeptSecrets
) -> None:
    async with database.begin(OPERATOR) as tx:
        await people.create(tx, "someone", "service_account")
    found = await ensure_first_login(database, passwords, kept, NOW)
    assert (found.admin, found.api_key) == (None, None)
    async with database.read() as session:
        assert len(await principals.page(session, after=None, limit=10)) == 1


async def test_a_changed_password_and_a_revoked_key_are_not_handed_out(
    database: Database, passwords: Passwords, kept: KeptSecrets
) -> None:
    first = await ensure_first_login(database, passwords, kept, NOW)
    async with database.begin(OPERATOR) as tx:
        await people.set_password(tx, "admin", await passwords.hash("another"))
    changed = await ensure_first_login(database, passwords, kept, NOW)
    assert (changed.admin, changed.api_key) == (None, first.api_key)
    async with database.begin(OPERATOR) as tx:
        holder = await actors.by_key(tx.session, token_digest(first.api_key or ""), NOW)
        assert holder is not None
        assert await keys.find(tx.session, holder.proof_id) is not None
        await key_service.revoke(tx, holder.proof_id, NOW)
    assert (await ensure_first_login(database, passwords, kept, NOW)).api_key is None


async def test_remains_of_a_run_that_was_cut_short_are_replaced(
    database: Database, passwords: Passwords, kept: KeptSecrets
) -> None:
    kept.keep_admin_password("never committed")
    kept.keep_api_key("sk-never")
    first = await ensure_first_login(database, passwords, kept, NOW)
    assert first.api_key not in (None, "sk-never")
    assert await ensure_first_login(database, passwords, kept, NOW) == first
