"""One commit for everything that belongs together: rows, audit events, the new version, the notification.

Services receive a `Transaction` and never commit. What they do to content they say with
`content_changed()`; what an auditor should read they say with `audit()`. On leaving `Database.begin`
without an exception all of it is committed at once; with one, none of it is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from fastllm_control.access import Actor

CHANNEL = "fastllm_config"
"""The Postgres channel on which a new version is announced; the payload is the version."""

_NEXT_VERSION = text(
    # The row lock makes versions follow commit order; Postgres's clock is the one clock of all replicas;
    # `greatest` moves a restored backup forward again.
    "UPDATE config SET"
    " version = greatest(version + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)"
    " RETURNING version"
)

_QUEUE = text(
    # Without a new version the same row lock is taken, so that the ids of audit events follow commits too:
    # whoever reads the log on from the last id that was seen misses none.
    "SELECT 1 FROM config FOR UPDATE"
)


class Change(msgspec.Struct, frozen=True):
    """One field before and after, as plain JSON values. Never hand in a secret: say `SET` or `CLEARED`."""

    before: Any
    after: Any


SECRET_SET = "(set)"
SECRET_CLEARED = "(cleared)"


class AuditNote(msgspec.Struct, frozen=True):
    """What one audit event will say beside its actor: a stable verb, what it was done to, and how."""

    action: str
    target_kind: str
    target_id: str | None
    target_name: str | None
    changes: dict[str, Change] = {}


class Transaction:
    """An open transaction on behalf of an actor. `version` is set on commit if content changed."""

    def __init__(self, session: AsyncSession, actor: Actor) -> None:
        self.session = session
        self.actor = actor
        self.version: int | None = None
        self.notes: list[AuditNote] = []
        self._content_changed = False

    def audit(
        self,
        action: str,
        target_kind: str,
        target_id: object = None,
        target_name: str | None = None,
        changes: Mapping[str, Change] | None = None,
    ) -> None:
        """Note one audit event, e.g. `audit("provider.create", "provider", row.id, row.name, {...})`.

        What did not change is left out of `changes`; a secret that was replaced reads `(set)` twice.
        """
        identity = None if target_id is None else str(target_id)
        changed = {
            name: change
            for name, change in (changes or {}).items()
            if change.before != change.after or change.after == SECRET_SET
        }
        self.notes.append(AuditNote(action, target_kind, identity, target_name, changed))

    def content_changed(self) -> None:
        """Say that what proxies are served has changed: the commit makes a new version."""
        self._content_changed = True

    async def finish(self) -> None:
        """Write the audit events and, if content changed, take the next version and announce it."""
        await self.session.flush()
        if self._content_changed:
            self.version = int((await self.session.execute(_NEXT_VERSION)).scalar_one())
        elif self.notes:
            await self.session.execute(_QUEUE)
        for note in self.notes:
            await _insert_audit(self.session, self.actor, note, self.version)
        if self.version is not None:
            announced = {"channel": CHANNEL, "version": str(self.version)}
            await self.session.execute(text("SELECT pg_notify(:channel, :version)"), announced)


class Database:
    """The engine, and the only way to a transaction."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine

    @asynccontextmanager
    async def begin(self, actor: Actor) -> AsyncIterator[Transaction]:
        """A read-write transaction that commits as a whole on leaving."""
        async with AsyncSession(self.engine, expire_on_commit=False) as session, session.begin():
            transaction = Transaction(session, actor)
            yield transaction
            await transaction.finish()

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncSession]:
        """One repeatable-read, read-only view of the database."""
        async with self.engine.connect() as connection:
            await connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            async with AsyncSession(connection, expire_on_commit=False) as session:
                yield session


async def _insert_audit(session: AsyncSession, actor: Actor, note: AuditNote, version: int | None) -> None:
    await session.execute(
        text(
            "INSERT INTO audit_events (at, actor_id, actor, via, action, target_kind, target_id, target_name,"
            " changes, version, request_id, address) VALUES (clock_timestamp(), :actor_id, :actor, :via,"
            " :action, :target_kind, :target_id, :target_name, CAST(:changes AS jsonb), :version,"
            " :request_id, :address)"
        ),
        {
            "actor_id": actor.principal_id,
            "actor": actor.name,
            "via": actor.via,
            "action": note.action,
            "target_kind": note.target_kind,
            "target_id": note.target_id,
            "target_name": note.target_name,
            "changes": msgspec.json.encode(note.changes).decode(),
            "version": version,
            "request_id": actor.request_id,
            "address": actor.address,
        },
    )
