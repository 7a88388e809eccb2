"""Who is behind a session or a key, with all that their roles permit: one query each."""

from __future__ import annotations

import datetime
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Row, TextClause, text
from sqlalchemy.ext.asyncio import AsyncSession

from fastllm_control.access import VERBS, Permission

_PERMISSIONS = (
    "(SELECT coalesce(json_agg(DISTINCT jsonb_build_array(rp.verb, rp.resource)), '[]'::json)"
    " FROM principal_roles pr JOIN role_permissions rp ON rp.role_id = pr.role_id"
    " WHERE pr.principal_id = p.id) AS permissions"
)
_BY_SESSION = text(
    f"SELECT s.id AS proof_id, p.id, p.name, 'admin' AS scope, {_PERMISSIONS}"  # noqa: S608 (constants only)
    " FROM sessions s JOIN principals p ON p.id = s.principal_id"
    " WHERE s.digest = :digest AND s.expires_at > :now"
)
_BY_KEY = text(
    f"SELECT k.id AS proof_id, p.id, p.name, k.scope, {_PERMISSIONS}"  # noqa: S608 (constants only)
    " FROM api_keys k JOIN principals p ON p.id = k.principal_id"
    " WHERE k.digest = :digest AND NOT k.disabled AND (k.expires_at IS NULL OR k.expires_at > :now)"
)


class Identity(msgspec.Struct, frozen=True):
    """`proof_id` is the session's or the key's id; `scope` of a session is `admin`."""

    proof_id: UUID
    principal_id: UUID
    name: str
    scope: str
    permissions: frozenset[Permission]


async def by_session(session: AsyncSession, digest: bytes, now: datetime.datetime) -> Identity | None:
    """The holder of a session that has not expired."""
    return await _find(session, _BY_SESSION, digest, now)


async def by_key(session: AsyncSession, digest: bytes, now: datetime.datetime) -> Identity | None:
    """The holder of a key that is neither revoked nor expired."""
    return await _find(session, _BY_KEY, digest, now)


async def _find(
    session: AsyncSession, query: TextClause, digest: bytes, now: datetime.datetime
) -> Identity | None:
    row: Row[Any] | None = (await session.execute(query, {"digest": digest, "now": now})).first()
    if row is None:
        return None
    # A verb that a newer release stored is no permission here.
    held = frozenset(Permission(verb, resource) for verb, resource in row.permissions if verb in VERBS)
    return Identity(row.proof_id, row.id, row.name, row.scope, held)
