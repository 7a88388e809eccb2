"""Pools: a balancing policy over backends that exist for provider models. They hold references, no copies."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from fastllm_control.errors import Conflict, Invalid
from fastllm_control.forms import NewPool, PoolMemberForm, PoolPatch
from fastllm_control.naming import missing, refuse_uuid
from fastllm_control.repositories import pools, provider_models
from fastllm_control.services.changes import apply, given
from fastllm_control.tables.configuration import Pool
from fastllm_control.transaction import Change, Transaction
from fastllm_shared.ids import uuid7

Member = tuple[str | None, UUID | None, int]
"""A provider model's name or a backend's id, and a weight."""


async def require(session: AsyncSession, reference: str, *, lock: bool = False) -> Pool:
    """By id or name; raises `NotFound`."""
    row = await pools.find(session, reference, lock=lock)
    if row is None:
        raise missing("pool", reference)
    return row


async def create(tx: Transaction, form: NewPool, *, dangling: bool = False) -> Pool:
    """A pool with its members, which must exist. Raises `Invalid` naming the member, `Conflict`. With
    `dangling`, provider models are named, and need not be there."""
    await _refuse_taken(tx, form.name)
    members = await _resolved(tx, form.members, _names(form.members) if dangling else frozenset())
    row = Pool(id=uuid7(), name=form.name, policy=form.policy)
    tx.session.add(row)
    await tx.session.flush()
    await tx.session.refresh(row)
    await pools.replace_members(tx.session, row.id, members)
    changes = {"policy": Change(None, row.policy), "members": Change(None, _shown(members))}
    tx.audit("pool.create", "pool", row.id, row.name, changes)
    tx.content_changed()
    return row


async def change(tx: Transaction, reference: str, patch: PoolPatch, *, dangling: bool = False) -> Pool:
    """Change what `patch` gives; a new name takes the targets along that name the pool. `dangling` as in
    `create`."""
    row = await require(tx.session, reference, lock=True)
    values = given(patch)
    before = row.name
    if values.get("name", before) != before:
        await _refuse_taken(tx, values["name"])
    wanted = values.pop("members", None)
    changes = apply(row, values)
    if row.name != before:
        await provider_models.move_named_targets(tx.session, before, row.name)
    if wanted is not None:
        changes |= await _replace_members(tx, row, wanted, _names(wanted) if dangling else frozenset())
    if changes:
        row.updated_at = datetime.datetime.now(datetime.UTC)
        tx.audit("pool.update", "pool", row.id, row.name, changes)
        tx.content_changed()
    return row


async def delete(tx: Transaction, reference: str) -> Pool:
    """Remove a pool; targets that name it stay, unresolved."""
    row = await require(tx.session, reference, lock=True)
    before = await _members(tx.session, row)
    changes = {"policy": Change(row.policy, None), "members": Change(_shown(before), None)}
    tx.audit("pool.delete", "pool", row.id, row.name, changes)
    tx.content_changed()
    await tx.session.delete(row)
    return row


async def _replace_members(
    tx: Transaction, row: Pool, forms: Sequence[PoolMemberForm], known: frozenset[str]
) -> dict[str, Change]:
    # With the name space held no model is renamed between what is read here and what is written.
    await provider_models.lock_target_names(tx.session)
    before = await _members(tx.session, row)
    after = await _resolved(tx, forms, known.union(name for name, _, _ in before if name is not None))
    if before == after:
        return {}
    await pools.replace_members(tx.session, row.id, after)
    return {"members": Change(_shown(before), _shown(after))}


async def _members(session: AsyncSession, row: Pool) -> list[Member]:
    found = (await pools.members_of(session, [row.id])).get(row.id, ())
    return [(member.provider_model, member.backend_id, member.weight) for member in found]


async def _resolved(
    tx: Transaction, forms: Sequence[PoolMemberForm], known: frozenset[str] = frozenset()
) -> list[Member]:
    """References checked. `known` are names of provider models that need not be there: those of members that
    there are already may be gone now."""
    members: list[Member] = []
    for at, form in enumerate(forms):
        if (form.provider_model is None) == (form.backend_id is None):
            message = "a member names either `provider_model` or `backend_id`"
            raise Invalid("invalid_value", message, f"members[{at}]")
        if form.provider_model is not None:
            name = await _model_name(tx, form.provider_model, known, f"members[{at}].provider_model")
            member: Member = (name, None, form.weight)
        else:
            member = (None, form.backend_id, form.weight)
        if any(member[:2] == other[:2] for other in members):
            raise Invalid("repeated_member", "is a member already: give it one weight", f"members[{at}]")
        members.append(member)
    await _refuse_unknown_backends(tx, members)
    return members


def _names(forms: Sequence[PoolMemberForm]) -> frozenset[str]:
    return frozenset(form.provider_model for form in forms if form.provider_model is not None)


async def _model_name(tx: Transaction, reference: str, known: frozenset[str], field: str) -> str:
    if reference in known:
        return reference
    row = await provider_models.find(tx.session, reference)
    if row is not None:
        return row.name
    if await pools.find(tx.session, reference) is not None:
        message = f"{reference!r} is a pool: the members of a pool are provider models and backends"
        raise Invalid("invalid_value", message, field)
    raise Invalid("provider_model_not_found", f"there is no provider model {reference!r}", field)


async def _refuse_unknown_backends(tx: Transaction, members: Sequence[Member]) -> None:
    wanted = [backend_id for _, backend_id, _ in members if backend_id is not None]
    found = await pools.hold_backends(tx.session, wanted) if wanted else frozenset()
    for at, (_, backend_id, _) in enumerate(members):
        if backend_id is not None and backend_id not in found:
            message = f"there is no backend {str(backend_id)!r}"
            raise Invalid("backend_not_found", message, f"members[{at}].backend_id")


def _shown(members: Sequence[Member]) -> list[dict[str, Any]]:
    return [
        {
            **({"backend_id": str(backend_id)} if name is None else {"provider_model": name}),
            "weight": weight,
        }
        for name, backend_id, weight in members
    ]


async def _refuse_taken(tx: Transaction, name: str) -> None:
    refuse_uuid(name)
    await provider_models.lock_target_names(tx.session)
    holder = await provider_models.holder_of_name(tx.session, name)
    if holder is not None:
        raise Conflict("already_exists", f"a {holder} is called {name!r} already", "name")
