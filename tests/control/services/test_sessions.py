"""Logging in and out: the same refusal for all that is wrong, and no session that outlives its password."""

from __future__ import annotations

import asyncio
import datetime
from uuid import UUID

import pytest
from argon2 import PasswordHasher

from fastllm_control.access import Actor
from fastllm_control.errors import NotFound, TooMany, Unauthenticated
from fastllm_control.repositories import actors
from fastllm_control.security import LoginThrottle, Passwords, token_digest
from fastllm_control.services import principals, sessions
from fastllm_control.services.sessions import Door, Login
from fastllm_control.transaction import Database
from fastllm_shared.ids import uuid7
from tests.fakes.access import COMMAND, Access
from tests.fakes.database import blocked

STRANGER = Actor(name="anonymous", via="anonymous", address="203.0.113.7", request_id="r-1")
GOOD, NEW = "correct horse", "battery staple"
LIFETIME = datetime.timedelta(hours=12)


class House:
    """A door, and Ada who has the key to it."""

    def __init__(self, access: Access) -> None:
        self.access = access
        cheap = Passwords(PasswordHasher(time_cost=1, memory_cost=8, parallelism=1))
        self.door = Door(access.database, cheap, LoginThrottle(lambda: 0.0), LIFETIME)

    async def furnish(self) -> None:
        password_hash = await self.door.passwords.hash(GOOD)
        await self.access.principal("ada", "viewer", password_hash=password_hash)
        await self.access.principal("no password")
        await self.access.principal("robot", kind="service_account")

    async def log_in(self, name: str = "ada", password: str = GOOD) -> Login:
        return await sessions.log_in(self.door, STRANGER, name, password, self.access.now)

    async def set_password(self, password: str, actor: Actor = COMMAND) -> None:
        hashed = await self.door.passwords.hash(password)
        async with self.access.database.begin(actor) as tx:
            await principals.set_password(tx, "ada", hashed)

    async def holder(self, login: Login, later: datetime.timedelta = datetime.timedelta()) -> str | None:
        async with self.access.database.read() as session:
            digest = token_digest(login.token)
            found = await actors.by_session(session, digest, self.access.now + later)
        return None if found is None else found.name


@pytest.fixture
async def house(access: Access) -> House:
    made = House(access)
    await made.furnish()
    return made


async def test_a_session_proves_its_holder_until_it_expires(house: House) -> None:
    login = await house.log_in()
    assert (login.name, login.expires_at) == ("ada", house.access.now + LIFETIME)
    assert await house.holder(login, LIFETIME - datetime.timedelta(seconds=1)) == "ada"
    assert await house.holder(login, LIFETIME) is None
    assert login.token not in repr(login)
    kept = await house.access.rows("SELECT digest, address FROM sessions")
    assert kept == [(token_digest(login.token), "203.0.113.7")]


@pytest.mark.parametrize(
    ("name", "password"),
    [
        ("ada", "wrong"),
        ("ada", ""),
        ("nobody", GOOD),
        ("no password", ""),
        ("no password", GOOD),
        ("robot", GOOD),
        ("ADA", GOOD),
    ],
)
async def test_whatever_is_wrong_has_one_answer(house: House, name: str, password: str) -> None:
    with pytest.raises(Unauthenticated) as refused:
        await house.log_in(name, password)
    assert (refused.value.code, refused.value.message, refused.value.field) == (
        "wrong_login",
        "the name or the password is wrong",
        None,
    )
    assert await house.access.rows("SELECT 1 FROM sessions") == []
    assert "session.create" not in await house.access.audited()


async def test_an_id_is_no_name_to_log_in_with(house: House) -> None:
    ada = await house.access.actor("ada")
    with pytest.raises(Unauthenticated):
        await house.log_in(str(ada.principal_id))


async def test_guesses_are_slowed_whether_the_name_exists_or_not(house: House) -> None:
    for name in ("ada", "nobody"):
        house.door = Door(house.door.database, house.door.passwords, LoginThrottle(lambda: 0.0), LIFETIME)
        done = await asyncio.gather(
            *(house.log_in(name, f"guess {n}") for n in range(9)), return_exceptions=True
        )
        kinds = [type(outcome) for outcome in done]
        assert kinds == [Unauthenticated] * 5 + [TooMany] * 4


async def test_a_login_is_audited_as_the_principals(house: House) -> None:
    await house.log_in()
    ((actor, via, address, target),) = await house.access.rows(
        "SELECT actor, via, address, target_name FROM audit_events WHERE action = 'session.create'"
    )
    assert (actor, via, address, target) == ("ada", "session", "203.0.113.7", "ada")


async def test_a_new_password_ends_the_other_sessions(house: House) -> None:
    mine, other = await house.log_in(), await house.log_in()
    async with house.access.database.read() as session:
        found = await actors.by_session(session, token_digest(mine.token), house.access.now)
    assert found is not None
    ada = await house.access.actor("ada")
    await house.set_password(
        NEW, Actor("ada", "session", ada.principal_id, ada.permissions, session_id=found.proof_id)
    )
    assert [await house.holder(login) for login in (mine, other)] == ["ada", None]
    with pytest.raises(Unauthenticated):
        await house.log_in()
    assert await house.holder(await house.log_in(password=NEW)) == "ada"


async def test_a_login_that_a_new_password_overtakes_is_refused(house: House) -> None:
    """Verified against the old hash, opened after the sessions of the old password were ended."""
    hashed = await house.door.passwords.hash(NEW)
    async with house.access.database.begin(COMMAND) as tx:
        await principals.set_password(tx, "ada", hashed)
        logging_in = asyncio.create_task(house.log_in())
        await blocked(house.access.database)
    with pytest.raises(Unauthenticated):
        await logging_in
    assert await house.access.rows("SELECT 1 FROM sessions") == []


async def test_a_login_of_one_who_is_being_deleted_is_refused(house: House) -> None:
    async with house.access.database.begin(COMMAND) as tx:
        await principals.delete(tx, "ada", house.access.now)
        await tx.session.flush()
        logging_in = asyncio.create_task(house.log_in())
        await blocked(house.access.database)
    with pytest.raises(Unauthenticated):
        await logging_in


async def test_logging_out_twice(house: House, database: Database) -> None:
    login, other = await house.log_in(), await house.log_in()
    for _ in range(2):
        async with database.begin(STRANGER) as tx:
            await sessions.log_out(tx, login.token)
    assert [await house.holder(one) for one in (login, other)] == [None, "ada"]
    ended = await house.access.rows("SELECT actor, via FROM audit_events WHERE action = 'session.end'")
    assert ended == [("ada", "session")]


async def test_revoking_a_session(house: House, database: Database) -> None:
    login = await house.log_in()
    ((session_id,),) = await house.access.rows("SELECT id FROM sessions")

    async def revoke(identity: UUID) -> None:
        async with database.begin(COMMAND) as tx:
            await sessions.revoke(tx, identity)

    await revoke(session_id)
    assert await house.holder(login) is None
    for absent in (session_id, uuid7()):
        with pytest.raises(NotFound):
            await revoke(absent)
    assert (await house.access.audited()).count("session.revoke") == 1


async def test_expired_sessions_are_forgotten_by_the_next_login(house: House) -> None:
    await house.log_in()
    house.access.now += LIFETIME
    await house.log_in()
    assert await house.access.rows("SELECT count(*) FROM sessions") == [(1,)]
