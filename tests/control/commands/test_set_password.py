"""`fastllm set-password`: the first way in, and the way back in."""

from __future__ import annotations

from fastllm_control.config import DatabaseSettings
from fastllm_control.database import open_engine
from fastllm_control.repositories import principals
from fastllm_control.security import Passwords
from fastllm_control.transaction import Database
from tests.fakes.access import Access
from tests.fakes.command import fastllm

PASSWORD = "correct horse battery"


async def roles_and_match(url: str, name: str, password: str) -> tuple[list[str], bool]:
    engine = open_engine(DatabaseSettings(database_url=url))
    async with Database(engine).read() as session:
        row = await principals.by_name(session, name)
        assert row is not None
        roles = await principals.role_names(session, row.id)
    await engine.dispose()
    return roles, await Passwords().verify(row.password_hash, password)


async def test_where_nobody_administers_it_makes_the_first_administrator(database_url: str) -> None:
    done = await fastllm("set-password", url=database_url, typed=PASSWORD + "\n")
    assert (done.code, done.errors) == (0, "")
    assert done.out == "the password of admin is set (created, with the role admin)\n"
    assert await roles_and_match(database_url, "admin", PASSWORD) == (["admin"], True)


async def test_afterwards_it_only_sets_passwords_of_those_who_are_there(database_url: str) -> None:
    await fastllm("set-password", "alice", url=database_url, typed=PASSWORD)
    unknown = await fastllm("set-password", "bob", url=database_url, typed=PASSWORD)
    assert (unknown.code, unknown.errors) == (1, "fastllm set-password: there is no principal 'bob'\n")
    again = await fastllm("set-password", "--name", "alice", url=database_url, typed="another good one\n")
    assert (again.code, again.out) == (0, "the password of alice is set\n")
    assert await roles_and_match(database_url, "alice", "another good one") == (["admin"], True)


async def test_what_it_does_is_audited_without_the_password(access: Access, database_url: str) -> None:
    await fastllm("set-password", url=database_url, typed=PASSWORD)
    await fastllm("set-password", url=database_url, typed="canary, not shown")
    rows = await access.rows(
        "SELECT action, via, row_to_json(a)::text AS whole FROM audit_events a ORDER BY id"
    )
    assert [(row.action, row.via) for row in rows] == [
        ("principal.create", "command"),
        ("principal.give_role", "command"),
        ("principal.set_password", "command"),
        ("principal.set_password", "command"),
    ]
    for row in rows:
        assert "canary" not in row.whole
        assert "argon2" not in row.whole


async def test_a_short_password_is_refused_and_not_repeated(database_url: str) -> None:
    done = await fastllm("set-password", url=database_url, typed="canary\n")
    assert done.code == 1
    assert "at least 8 characters" in done.errors
    assert "canary" not in done.errors
    assert (await fastllm("set-password", url=database_url, typed="")).code == 1
