"""Rules: `/admin/frontend-models/{id}/rules`, `/admin/rules/{id}` and `/admin/fallback-model`."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from fastllm_control.api.frontend_models import TargetRow
from fastllm_control.forms import FallbackForm, NewRule, RuleForm, RuleList, RulePatch, Rules
from fastllm_control.naming import required_id
from fastllm_control.operations import Call, Deleted, Operation
from fastllm_control.paging import Page, PageQuery, page_of
from fastllm_control.repositories import frontend_models, provider_models
from fastllm_control.repositories import rules as repository
from fastllm_control.services import fallback
from fastllm_control.services import frontend_models as models
from fastllm_control.services import rules as service
from fastllm_control.tables.configuration import RoutingRule
from fastllm_shared.snapshot import Conditions, Policy, RuleAction


class RuleRow(msgspec.Struct, frozen=True):
    """`when` holds the conditions that are set. `jump_resolved` tells whether what a jump leads to still
    exists; `null` for other actions."""

    id: UUID
    frontend_model_id: UUID
    frontend_model: str
    position: int
    when: Conditions
    action: RuleAction
    targets: list[TargetRow]
    policy: Policy | None
    tag: str | None
    deny_status: int | None
    deny_message: str | None
    jump: str | None
    jump_resolved: bool | None
    created_at: datetime.datetime
    updated_at: datetime.datetime


class FallbackRow(msgspec.Struct, frozen=True):
    """`resolved` tells whether a frontend model of that name exists; `null` when none is named."""

    frontend_model: str | None
    resolved: bool | None


async def index(call: Call) -> Page[RuleRow]:
    query: PageQuery = call.query
    async with call.services.database.read() as session:
        model = await models.require(session, call.path["id"])
        found = await repository.page(session, model.id, query.limit + 1, query.after_number())
        rows = await _rows(session, model.name, found)
    return page_of(rows, query.limit, lambda row: row.position)


async def create(call: Call) -> RuleRow:
    return await _row(call.tx.session, await service.create(call.tx, call.path["id"], call.body))


async def replace_all(call: Call) -> Page[RuleRow]:
    body: RuleList | tuple[RuleForm, ...] = call.body
    forms = body.rules if isinstance(body, RuleList) else body
    model = await service.replace_all(call.tx, call.path["id"], forms)
    found = (await repository.of_models(call.tx.session, [model.id])).get(model.id, ())
    return Page(await _rows(call.tx.session, model.name, found))


async def show(call: Call) -> RuleRow:
    async with call.services.database.read() as session:
        return await _row(session, await service.require(session, _id(call)))


async def update(call: Call) -> RuleRow:
    return await _row(call.tx.session, await service.change(call.tx, _id(call), call.body))


async def delete(call: Call) -> Deleted:
    await service.delete(call.tx, _id(call))
    return Deleted()


async def show_fallback(call: Call) -> FallbackRow:
    async with call.services.database.read() as session:
        return await _fallback(session, await fallback.current(session))


async def set_fallback(call: Call) -> FallbackRow:
    body: FallbackForm | None = call.body
    name = await fallback.set_fallback(call.tx, None if body is None else body.frontend_model)
    return await _fallback(call.tx.session, name)


def _id(call: Call) -> UUID:
    return required_id(call.path["id"], "rule")


async def _fallback(session: AsyncSession, name: str | None) -> FallbackRow:
    return FallbackRow(name, None if name is None else await frontend_models.name_taken(session, name))


async def _row(session: AsyncSession, row: RoutingRule) -> RuleRow:
    model = await models.require(session, str(row.frontend_model_id))
    return (await _rows(session, model.name, [row]))[0]


async def _rows(session: AsyncSession, model: str, found: Sequence[RoutingRule]) -> list[RuleRow]:
    """All of one frontend model."""
    forms = await service.forms_of(session, found)
    named = {target.target for form in forms for target in form.targets}
    resolved = await provider_models.resolved(session, sorted(named))
    standing = await frontend_models.existing(session, sorted({form.jump for form in forms if form.jump}))
    return [
        RuleRow(
            id=row.id,
            frontend_model_id=row.frontend_model_id,
            frontend_model=model,
            position=row.position,
            when=form.when,
            action=form.action,
            targets=[TargetRow(t.target, t.weight, t.target in resolved) for t in form.targets],
            policy=form.policy,
            tag=form.tag,
            deny_status=form.deny_status,
            deny_message=form.deny_message,
            jump=form.jump,
            jump_resolved=None if form.jump is None else form.jump in standing,
            created_at=row.created_at,
            updated_at=row.updated_at,
        )
        for row, form in zip(found, forms, strict=True)
    ]


ROUTES = (
    Operation(
        method="GET",
        path="/admin/frontend-models/{id}/rules",
        requires="config:read",
        summary="List a frontend model's rules, in the order in which they are asked",
        handler=index,
        query=PageQuery,
        result=Page[RuleRow],
        errors=(404,),
    ),
    Operation(
        method="POST",
        path="/admin/frontend-models/{id}/rules",
        requires="config:write",
        summary="Add a rule at a position, or at the end: its targets extend what the model's callers reach",
        handler=create,
        body=NewRule,
        result=RuleRow,
        status=201,
        errors=(404, 409),
    ),
    Operation(
        method="PUT",
        path="/admin/frontend-models/{id}/rules",
        requires="config:write",
        summary="Replace all rules of a frontend model; those that stay as they are keep their ids",
        handler=replace_all,
        body=RuleList | Rules,
        result=Page[RuleRow],
        errors=(404, 409),
    ),
    Operation(
        method="GET",
        path="/admin/rules/{id}",
        requires="config:read",
        summary="Show a rule",
        handler=show,
        result=RuleRow,
        errors=(404,),
    ),
    Operation(
        method="PATCH",
        path="/admin/rules/{id}",
        requires="config:write",
        summary="Change a rule: position (it moves), conditions, action, targets, tag",
        handler=update,
        body=RulePatch,
        result=RuleRow,
        errors=(404, 409),
    ),
    Operation(
        method="DELETE",
        path="/admin/rules/{id}",
        requires="config:write",
        summary="Delete a rule; those after it move up",
        handler=delete,
        result=Deleted,
        errors=(404, 409),
    ),
    Operation(
        method="GET",
        path="/admin/fallback-model",
        requires="config:read",
        summary="Show the frontend model that may end every chain",
        handler=show_fallback,
        result=FallbackRow,
    ),
    Operation(
        method="PUT",
        path="/admin/fallback-model",
        requires="config:write",
        summary="Name the frontend model that may end every chain, or `null`: none",
        handler=set_fallback,
        body=FallbackForm | None,
        result=FallbackRow,
        errors=(409,),
    ),
)
