"""Logging in and out."""

from __future__ import annotations

import datetime
from uuid import UUID

import msgspec

from fastllm_control.access import Actor
from fastllm_control.errors import Unauthenticated
from fastllm_control.naming import missing
from fastllm_control.repositories import principals, sessions
from fastllm_control.security import LoginThrottle, Passwords, new_token, token_digest
from fastllm_control.tables.access import Principal, Session
from fastllm_control.transaction import Database, Transaction
from fastllm_shared.ids import uuid7


class Login(msgspec.Struct, frozen=True):
    """A session that was opened; `token` is the cookie's value."""

    token: str
    principal_id: UUID
    name: str
    expires_at: datetime.datetime

    def __repr__(self) -> str:
        return f"Login(name={self.name!r})"


class Door(msgspec.Struct, frozen=True):
    """What logging in needs beside the name and the password."""

    database: Database
    passwords: Passwords
    throttle: LoginThrottle
    lifetime: datetime.timedelta


async def log_in(door: Door, actor: Actor, name: str, password: str, now: datetime.datetime) -> Login:
    """Open a session. A wrong name and a wrong password have one answer, which takes the same time.

    Raises `TooMany`, `Unauthenticated`. The password is verified outside of any transaction, since it
    takes a tenth of a second and connections are few.
    """
    door.throttle.begin(name, actor.address)
    async with door.database.read() as session:
        found = await principals.by_name(session, name)
        stored = None if found is None else found.password_hash
    right = await door.passwords.verify(stored, password)
    if found is None or not right:
        raise _wrong()
    door.throttle.succeeded(name, actor.address)
    as_principal = msgspec.structs.replace(actor, name=name, via="session", principal_id=found.id)
    async with door.database.begin(as_principal) as tx:
        return await _open(tx, found, door.lifetime, now)


def _wrong() -> Unauthenticated:
    return Unauthenticated("wrong_login", "the name or the password is wrong")


async def _open(
    tx: Transaction, verified: Principal, lifetime: datetime.timedelta, now: datetime.datetime
) -> Login:
    # A new password ends all sessions: one of the old password must not be opened just after that.
    principal = await principals.unchanged(tx.session, verified.id)
    if principal is None or principal.password_hash != verified.password_hash:
        raise _wrong()
    await sessions.forget_expired(tx.session, now)
    token = new_token()
    row = Session(
        id=uuid7(),
        principal_id=principal.id,
        digest=token_digest(token),
        address=tx.actor.address,
        expires_at=now + lifetime,
    )
    tx.session.add(row)
    tx.audit("session.create", "session", row.id, principal.name)
    return Login(token, principal.id, principal.name, row.expires_at)


async def log_out(tx: Transaction, token: str) -> None:
    """End the session of a cookie; one that is unknown has ended already."""
    ended = await sessions.revoke_by_digest(tx.session, token_digest(token))
    if ended is not None:
        holder = await principals.find(tx.session, str(ended.principal_id))
        name = None if holder is None else holder.name
        tx.actor = msgspec.structs.replace(
            tx.actor, name=name or tx.actor.name, via="session", principal_id=ended.principal_id
        )
        tx.audit("session.end", "session", ended.id, name)


async def revoke(tx: Transaction, session_id: UUID) -> None:
    """End somebody's session. Raises `NotFound`."""
    owner = await sessions.revoke(tx.session, session_id)
    if owner is None:
        raise missing("session", str(session_id))
    holder = await principals.find(tx.session, str(owner))
    tx.audit("session.revoke", "session", session_id, None if holder is None else holder.name)
