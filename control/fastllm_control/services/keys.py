"""API keys: made, rotated, revoked. A key itself is shown once, to whoever made it, and kept nowhere."""

from __future__ import annotations

import datetime
from uuid import UUID

import msgspec

from fastllm_control.errors import Conflict, Invalid
from fastllm_control.naming import missing
from fastllm_control.repositories import keys, principals
from fastllm_control.services.grants import administration_kept, refuse_more_than_held
from fastllm_control.services.principals import require
from fastllm_control.tables.access import ApiKey, Principal
from fastllm_control.transaction import Change, Transaction
from fastllm_shared.ids import uuid7
from fastllm_shared.keys import digest_of, new_key, shown_prefix
from fastllm_shared.snapshot import Scope


class NewKey(msgspec.Struct, frozen=True):
    """What making a key answers: the only time that `key` is shown."""

    id: UUID
    key: str
    prefix: str
    name: str
    principal_id: UUID
    principal: str
    scope: Scope
    expires_at: datetime.datetime | None

    def __repr__(self) -> str:
        return f"NewKey(id={self.id}, prefix={self.prefix!r})"


class GivenKey(msgspec.Struct, frozen=True):
    """A key that was made elsewhere: of it there is no more than its digest, and what may be shown of it."""

    digest: bytes
    name: str
    prefix: str
    scope: Scope
    expires_at: datetime.datetime | None = None


async def create(
    tx: Transaction,
    principal: str,
    name: str,
    scope: Scope,
    expires_at: datetime.datetime | None,
    now: datetime.datetime,
) -> NewKey:
    """A key of the principal `principal`, an id or name. Raises `Invalid`, `Forbidden`."""
    if expires_at is not None and expires_at <= now:
        raise Invalid("invalid_value", "the expiry has passed already", "expires_at")
    holder = await require(tx, principal, "principal_id")
    await _refuse_more_than_held(tx, holder, scope)
    made = _add(tx, holder, name, scope, expires_at)
    tx.audit("key.create", "key", made.id, name, _changes(made))
    tx.content_changed()
    return made


async def adopt(
    tx: Transaction, principal: str, given: GivenKey, now: datetime.datetime, *, movable: bool
) -> ApiKey | None:
    """A key that was made elsewhere, by its digest. `None`: it is there like that already.

    One that was revoked here stays so. One of another principal is refused, unless it is `movable`.
    Raises `Invalid`, `Conflict`, `Forbidden`.
    """
    holder = await require(tx, principal, "principal_id")
    await _refuse_more_than_held(tx, holder, given.scope)
    row = await keys.by_digest(tx.session, given.digest)
    if row is not None and row.principal_id != holder.id and not movable:
        raise Conflict("key_taken", f"the key {given.name!r} is one of another principal already")
    changes = {"scope": Change(row and row.scope, given.scope)}
    changes["expires_at"] = Change(_text(row.expires_at) if row else None, _text(given.expires_at))
    if row is None or row.principal_id != holder.id:
        before = None if row is None else (await require(tx, str(row.principal_id))).name
        changes["principal"] = Change(before, holder.name)
    if row is not None and all(change.before == change.after for change in changes.values()):
        return None
    async with administration_kept(tx, now):
        row = row or ApiKey(id=uuid7(), digest=given.digest, disabled=False, created_by=tx.actor.name)
        row.principal_id, row.name, row.prefix = holder.id, given.name, given.prefix
        row.scope, row.expires_at = given.scope, given.expires_at
        tx.session.add(row)
    tx.audit("key.adopt", "key", row.id, given.name, changes)
    tx.content_changed()
    return row


async def rotate(tx: Transaction, key_id: UUID, grace_seconds: int, now: datetime.datetime) -> NewKey:
    """A new key like the old one; both work for `grace_seconds`, then the new one does.

    The new key lives as long from now as the old one was to live when it was made.
    """
    old = await keys.find(tx.session, key_id)
    if old is None:
        raise missing("key", str(key_id))
    if old.disabled or (old.expires_at is not None and old.expires_at <= now):
        raise Conflict("key_not_valid", "this key is revoked or has expired: create a new one")
    holder = await require(tx, str(old.principal_id))
    scope: Scope = "admin" if old.scope == "admin" else "invoke"
    await _refuse_more_than_held(tx, holder, scope)
    expires_at = _lasting_as_long(old, now)
    made = _add(tx, holder, old.name, scope, expires_at)
    until = now + datetime.timedelta(seconds=grace_seconds)
    before = old.expires_at
    old.expires_at = until if before is None else min(before, until)
    old.disabled = grace_seconds == 0
    changes = {
        "expires_at": Change(_text(before), _text(old.expires_at)),
        "disabled": Change(False, old.disabled),
        "successor": Change(None, _successor(made)),
    }
    tx.audit("key.rotate", "key", old.id, old.name, changes)
    tx.content_changed()
    return made


async def revoke(tx: Transaction, key_id: UUID, now: datetime.datetime) -> None:
    """For good; the row stays. Revoking a revoked one changes nothing."""
    async with administration_kept(tx, now):
        row = await keys.find(tx.session, key_id)
        if row is None:
            raise missing("key", str(key_id))
        if row.disabled:
            return
        row.disabled = True
        tx.audit("key.revoke", "key", row.id, row.name, {"disabled": Change(False, True)})
        tx.content_changed()


def _lasting_as_long(old: ApiKey, now: datetime.datetime) -> datetime.datetime | None:
    if old.expires_at is None:
        return None
    try:
        return now + (old.expires_at - old.created_at)
    except OverflowError:  # beyond the year 9999, which somebody wrote for "never"
        return old.expires_at


def _add(
    tx: Transaction, holder: Principal, name: str, scope: Scope, expires_at: datetime.datetime | None
) -> NewKey:
    key = new_key()
    row = ApiKey(
        id=uuid7(),
        principal_id=holder.id,
        name=name,
        digest=digest_of(key),
        prefix=shown_prefix(key),
        scope=scope,
        disabled=False,
        expires_at=expires_at,
        created_by=tx.actor.name,
    )
    tx.session.add(row)
    return NewKey(row.id, key, row.prefix, name, holder.id, holder.name, scope, expires_at)


async def _refuse_more_than_held(tx: Transaction, holder: Principal, scope: Scope) -> None:
    # An `invoke` key opens nothing but models, and whoever runs the gateway may hand those out.
    if scope == "admin":
        held = await principals.permissions(tx.session, holder.id)
        administrative = [permission for permission in held if permission.verb != "model:invoke"]
        refuse_more_than_held(tx.actor, administrative, f"an admin key of {holder.name!r}")


def _changes(made: NewKey) -> dict[str, Change]:
    return {
        "principal": Change(None, made.principal),
        "scope": Change(None, made.scope),
        "prefix": Change(None, made.prefix),
        "expires_at": Change(None, _text(made.expires_at)),
    }


def _successor(made: NewKey) -> dict[str, str | None]:
    return {"id": str(made.id), "prefix": made.prefix, "expires_at": _text(made.expires_at)}


def _text(moment: datetime.datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
