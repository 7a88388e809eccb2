"""Principals, roles and their actors for tests of services: each in a transaction of its own."""

from __future__ import annotations

import datetime
from typing import Any

from sqlalchemy import text

from fastllm_control.access import Actor, Permission, Verb
from fastllm_control.repositories import principals as repository
from fastllm_control.services import keys, principals, roles
from fastllm_control.services.keys import NewKey
from fastllm_control.transaction import Database
from fastllm_shared.snapshot import PrincipalKind, Scope

COMMAND = Actor(name="tests", via="command")


class Access:
    """Adds to one database."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.now = datetime.datetime.now(datetime.UTC)

    async def role(self, name: str, *permissions: tuple[Verb, str]) -> str:
        async with self.database.begin(COMMAND) as tx:
            await roles.create(tx, name)
            for verb, resource in permissions:
                await roles.add_permission(tx, name, Permission(verb, resource))
        return name

    async def principal(
        self, name: str, *held: str, kind: PrincipalKind = "user", password_hash: str | None = None
    ) -> Actor:
        """A new principal, as the actor that it is when it calls."""
        async with self.database.begin(COMMAND) as tx:
            await principals.create(tx, name, kind)
            for role in held:
                await principals.give_role(tx, name, role)
            if password_hash is not None:
                await principals.set_password(tx, name, password_hash)
        return await self.actor(name)

    async def admin(self, name: str) -> Actor:
        """Someone who can administer everything and can log in."""
        return await self.principal(name, "admin", password_hash="$argon2id$of-" + name)

    async def actor(self, name: str) -> Actor:
        async with self.database.read() as session:
            row = await repository.by_name(session, name)
            assert row is not None
            held = await repository.permissions(session, row.id)
        return Actor(name=name, via="session", principal_id=row.id, permissions=held)

    async def key(
        self, principal: str, scope: Scope = "invoke", *, expires_at: datetime.datetime | None = None
    ) -> NewKey:
        async with self.database.begin(COMMAND) as tx:
            return await keys.create(tx, principal, "test", scope, expires_at, self.now)

    async def rows(self, query: str, **values: object) -> list[Any]:
        async with self.database.read() as session:
            return list(await session.execute(text(query), values))

    async def version(self) -> int:
        return int((await self.rows("SELECT version FROM config"))[0][0])

    async def audited(self) -> list[str]:
        """Every action so far."""
        return [row.action for row in await self.rows("SELECT action FROM audit_events ORDER BY id")]
