"""Routing rules: what decides where a request for a frontend model goes. Positions are dense, from 0.

Every write holds the frontend model's row, so that writers of one list queue, and then `jumps.hold_routing`.
"""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from fastllm_control.errors import Conflict
from fastllm_control.forms import NewRule, RuleForm, RulePatch, Target
from fastllm_control.naming import missing
from fastllm_control.repositories import rules
from fastllm_control.rule_checks import FIELDS_OF, refuse_unfit
from fastllm_control.services import frontend_models, jumps
from fastllm_control.services.changes import given
from fastllm_control.tables.configuration import FrontendModel, RoutingRule
from fastllm_control.transaction import Change, Transaction
from fastllm_shared.ids import uuid7

MOST_RULES = 1000
_DEFAULTS = RuleForm()


async def require(session: AsyncSession, rule_id: UUID) -> RoutingRule:
    """Raises `NotFound`."""
    row = await rules.find(session, rule_id)
    if row is None:
        raise missing("rule", str(rule_id))
    return row


async def create(tx: Transaction, model_ref: str, form: NewRule) -> RoutingRule:
    """A rule at its position; what stands there and after it moves down by one."""
    model = await frontend_models.require(tx.session, model_ref, lock=True)
    standing = await _standing(tx, model)
    if len(standing) >= MOST_RULES:
        raise Conflict("too_many_rules", f"a frontend model has at most {MOST_RULES} rules")
    checked = await _checked(
        tx, RuleForm(**{name: getattr(form, name) for name in _DEFAULTS.__struct_fields__})
    )
    await _refuse_circle(tx, model, [*standing, checked])
    row = RoutingRule(id=uuid7(), frontend_model_id=model.id)
    _fill(row, checked)
    at = len(standing) if form.position is None else min(form.position, len(standing))
    standing.insert(at, row)
    _number(standing)
    tx.session.add(row)
    await tx.session.flush()
    await tx.session.refresh(row)
    await rules.replace_targets(tx.session, row.id, checked.targets)
    changes = {"position": Change(None, at), **_changes(None, checked)}
    tx.audit("rule.create", "rule", row.id, model.name, changes)
    tx.content_changed()
    return row


async def change(tx: Transaction, rule_id: UUID, patch: RulePatch) -> RoutingRule:
    """Change what `patch` gives. A new action forgets what belongs to the old one."""
    model, standing, row = await _locked(tx, rule_id)
    before = (await forms_of(tx.session, [row]))[0]
    values = given(patch)
    position = values.pop("position", row.position)
    if values.get("action", before.action) != before.action:
        values = {**{name: getattr(_DEFAULTS, name) for name in FIELDS_OF[before.action]}, **values}
    after = msgspec.structs.replace(before, **values)
    if after != before:
        # What a jump leads to need exist only when it is written.
        after = await _checked(tx, after, known=before.jump)
        others = [other for other in standing if other is not row]
        await _refuse_circle(tx, model, [*others, after])
    changes = _changes(before, after)
    if changes:
        _fill(row, after)
    if "targets" in changes:
        await rules.replace_targets(tx.session, row.id, after.targets)
    changes |= _move(standing, row, position)
    if changes:
        row.updated_at = datetime.datetime.now(datetime.UTC)
        tx.audit("rule.update", "rule", row.id, model.name, changes)
        tx.content_changed()
        await tx.session.flush()
    return row


async def delete(tx: Transaction, rule_id: UUID) -> None:
    """What stands after it moves up by one."""
    model, standing, row = await _locked(tx, rule_id)
    form = (await forms_of(tx.session, [row]))[0]
    changes = {name: Change(was.after, None) for name, was in _changes(None, form).items()}
    tx.audit("rule.delete", "rule", row.id, model.name, {"position": Change(row.position, None), **changes})
    tx.content_changed()
    standing.remove(row)
    await tx.session.delete(row)
    _number(standing)
    await tx.session.flush()


async def replace_all(
    tx: Transaction, model_ref: str, forms: Sequence[RuleForm], *, dangling: bool = False
) -> FrontendModel:
    """Make `forms`, in this order, all rules of a frontend model. Rules that are there as they are wanted
    keep their ids. With `dangling`, jumps are names, and may lead to what is not there."""
    model = await frontend_models.require(tx.session, model_ref, lock=True)
    standing = await _standing(tx, model)
    before = await forms_of(tx.session, standing)
    if len(forms) > MOST_RULES:
        raise Conflict("too_many_rules", f"a frontend model has at most {MOST_RULES} rules")
    kept: defaultdict[bytes, list[RoutingRule]] = defaultdict(list)
    for row, form in zip(reversed(standing), reversed(before), strict=True):
        kept[_identity(form)].append(row)
    # What a jump leads to need exist only when it is written.
    known = {form.jump for form in before}
    wanted = [
        await _checked(
            tx, form, at=f"rules[{index}].", known=form.jump if dangling or form.jump in known else None
        )
        for index, form in enumerate(forms)
    ]
    if wanted == list(before):
        return model
    await _refuse_circle(tx, model, wanted, at="rules[{}].")
    rows = [_kept_or_new(tx, model, kept, form) for form in wanted]
    for left in kept.values():
        for row in left:
            await tx.session.delete(row)
    _number(rows)
    await tx.session.flush()
    stood = {row.id for row in standing}
    for row, form in zip(rows, wanted, strict=True):
        if row.id not in stood:
            await rules.replace_targets(tx.session, row.id, form.targets)
    changes = {"rules": Change([plain(form) for form in before], [plain(form) for form in wanted])}
    tx.audit("frontend_model.set_rules", "frontend_model", model.id, model.name, changes)
    tx.content_changed()
    return model


async def forms_of(session: AsyncSession, rows: Sequence[RoutingRule]) -> Sequence[RuleForm]:
    """Stored rules, as they would be written."""
    targets = await rules.targets_of(session, [row.id for row in rows])
    return [form_of(row, targets.get(row.id, ())) for row in rows]


def form_of(row: RoutingRule, targets: Sequence[Target]) -> RuleForm:
    """A stored rule, as it would be written."""
    stored = {
        "when": row.conditions,
        "action": row.action,
        "policy": row.policy,
        "tag": row.tag,
        "deny_status": row.deny_status,
        "deny_message": row.deny_message,
        "jump": row.jump,
    }
    return msgspec.structs.replace(msgspec.convert(stored, RuleForm), targets=tuple(targets))


def plain(form: RuleForm) -> dict[str, Any]:
    """A rule as an auditor should read it: what is set."""
    values: dict[str, Any] = msgspec.to_builtins(form)
    return {name: value for name, value in values.items() if value not in (None, (), {})}


def _identity(form: RuleForm) -> bytes:
    return msgspec.json.encode(form, order="deterministic")


async def _standing(tx: Transaction, model: FrontendModel) -> list[RoutingRule]:
    """The rules of a locked frontend model; nobody else writes rules from here on."""
    await jumps.hold_routing(tx)
    return list((await rules.of_models(tx.session, [model.id])).get(model.id, ()))


async def _locked(tx: Transaction, rule_id: UUID) -> tuple[FrontendModel, list[RoutingRule], RoutingRule]:
    """A rule among those of its frontend model, all of them held. Raises `NotFound`."""
    seen = await require(tx.session, rule_id)
    model = await frontend_models.require(tx.session, str(seen.frontend_model_id), lock=True)
    standing = await _standing(tx, model)
    for row in standing:
        if row.id == rule_id:
            return model, standing, row
    raise missing("rule", str(rule_id))


async def _checked(tx: Transaction, form: RuleForm, *, at: str = "", known: str | None = None) -> RuleForm:
    """The form, with the name of what it jumps to. Raises `Invalid`."""
    refuse_unfit(form, at)
    if form.jump is None or form.jump == known:
        return form
    return msgspec.structs.replace(form, jump=await jumps.destination(tx, form.jump, f"{at}jump"))


async def _refuse_circle(
    tx: Transaction, model: FrontendModel, result: Sequence[RoutingRule | RuleForm], at: str = ""
) -> None:
    destinations = {rule.jump: f"{at.format(index)}jump" for index, rule in enumerate(result) if rule.jump}
    if destinations:
        await jumps.refuse_circle(tx, model.name, list(destinations), destinations, "jump")


def _kept_or_new(
    tx: Transaction, model: FrontendModel, kept: Mapping[bytes, list[RoutingRule]], form: RuleForm
) -> RoutingRule:
    same = kept.get(_identity(form))
    if same:
        return same.pop()
    row = RoutingRule(id=uuid7(), frontend_model_id=model.id)
    _fill(row, form)
    tx.session.add(row)
    return row


def _fill(row: RoutingRule, form: RuleForm) -> None:
    row.conditions = msgspec.to_builtins(form.when)
    for name in ("action", "policy", "tag", "deny_status", "deny_message", "jump"):
        setattr(row, name, getattr(form, name))


def _move(standing: list[RoutingRule], row: RoutingRule, position: int) -> dict[str, Change]:
    was = row.position
    standing.remove(row)
    standing.insert(min(position, len(standing)), row)
    _number(standing)
    return {} if row.position == was else {"position": Change(was, row.position)}


def _number(rows: Sequence[RoutingRule]) -> None:
    for position, row in enumerate(rows):
        if row.position != position:
            row.position = position


def _changes(before: RuleForm | None, after: RuleForm) -> dict[str, Change]:
    """Field by field; of a new rule, all that is set."""
    old, new = plain(before) if before is not None else {}, plain(after)
    names = [name for name in _DEFAULTS.__struct_fields__ if old.get(name) != new.get(name)]
    return {name: Change(old.get(name), new.get(name)) for name in names}
