"""Frontend models: what clients ask for, and where it goes when no rule decides."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from fastllm_control.errors import Conflict, Invalid
from fastllm_control.forms import FrontendModelPatch, NewFrontendModel, Target
from fastllm_control.naming import missing, refuse_uuid
from fastllm_control.repositories import frontend_models, rules
from fastllm_control.rule_checks import refuse_repeated
from fastllm_control.services import jumps
from fastllm_control.services.changes import apply, created, given
from fastllm_control.tables.configuration import FrontendModel
from fastllm_control.transaction import Change, Transaction
from fastllm_shared.ids import uuid7

_FIELDS = ("policy", "retry_on_timeout")


async def require(session: AsyncSession, reference: str, *, lock: bool = False) -> FrontendModel:
    """By id or name; raises `NotFound`."""
    row = await frontend_models.find(session, reference, lock=lock)
    if row is None:
        raise missing("frontend model", reference)
    return row


async def create(tx: Transaction, form: NewFrontendModel) -> FrontendModel:
    """A frontend model with its default targets, which need not exist yet."""
    await _refuse_taken(tx, form.name)
    refuse_repeated(form.targets)
    row = FrontendModel(
        id=uuid7(), name=form.name, policy=form.policy, retry_on_timeout=form.retry_on_timeout
    )
    tx.session.add(row)
    await tx.session.flush()
    await tx.session.refresh(row)
    await frontend_models.replace_targets(tx.session, row.id, form.targets)
    changes = created(row, _FIELDS) | {"targets": Change(None, _plain(form.targets))}
    tx.audit("frontend_model.create", "frontend_model", row.id, row.name, changes)
    tx.content_changed()
    return row


async def change(tx: Transaction, reference: str, patch: FrontendModelPatch) -> FrontendModel:
    """Change what `patch` gives; a new name takes grants, jumps and the fallback along."""
    row = await require(tx.session, reference, lock=True)
    values = given(patch)
    before = row.name
    if values.get("name", before) != before:
        await _refuse_taken(tx, values["name"])
    targets = values.pop("targets", None)
    if values.get("name", before) != before:
        await jumps.hold_routing(tx)
    changes = apply(row, values)
    if row.name != before:
        await frontend_models.move_grants(tx.session, before, row.name)
        await frontend_models.move_references(tx.session, before, row.name)
        # Jumps to a model of the new name that was deleted lead somewhere again.
        await jumps.refuse_circle(tx, row.name, None, {}, "name")
    if targets is not None:
        changes |= await _replace_targets(tx, row, targets)
    _note(tx, row, changes)
    return row


async def set_targets(tx: Transaction, reference: str, targets: Sequence[Target]) -> FrontendModel:
    """Replace the default targets."""
    row = await require(tx.session, reference, lock=True)
    _note(tx, row, await _replace_targets(tx, row, targets))
    return row


async def delete(tx: Transaction, reference: str) -> FrontendModel:
    """Remove a frontend model with its rules. Grants on its name stay with their roles, and apply again to a
    model of that name."""
    row = await require(tx.session, reference, lock=True)
    targets = (await frontend_models.targets_of(tx.session, [row.id])).get(row.id, ())
    changes = {"targets": Change(_plain(targets), None)}
    if count := (await rules.counts(tx.session, [row.id])).get(row.id):
        changes["rule_count"] = Change(count, None)
    tx.audit("frontend_model.delete", "frontend_model", row.id, row.name, changes)
    tx.content_changed()
    await tx.session.delete(row)
    return row


async def _replace_targets(
    tx: Transaction, row: FrontendModel, targets: Sequence[Target]
) -> dict[str, Change]:
    refuse_repeated(targets)
    before = _plain((await frontend_models.targets_of(tx.session, [row.id])).get(row.id, ()))
    after = _plain(targets)
    if before == after:
        return {}
    await frontend_models.replace_targets(tx.session, row.id, targets)
    return {"targets": Change(before, after)}


def _note(tx: Transaction, row: FrontendModel, changes: dict[str, Change]) -> None:
    if changes:
        row.updated_at = datetime.datetime.now(datetime.UTC)
        tx.audit("frontend_model.update", "frontend_model", row.id, row.name, changes)
        tx.content_changed()


def _plain(targets: Sequence[Target]) -> list[object]:
    return [msgspec.to_builtins(target) for target in targets]


async def _refuse_taken(tx: Transaction, name: str) -> None:
    refuse_uuid(name)
    if name == "*":
        raise Invalid("invalid_name", "a grant on `model/*` means every model: choose another name", "name")
    if await frontend_models.name_taken(tx.session, name):
        raise Conflict("already_exists", f"a frontend model is called {name!r} already", "name")
