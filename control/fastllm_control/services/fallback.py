"""The frontend model that may end every chain of the deployment."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession

from fastllm_control.errors import Invalid
from fastllm_control.naming import missing
from fastllm_control.repositories import fallback, frontend_models
from fastllm_control.services import jumps
from fastllm_control.transaction import Change, Transaction


async def current(session: AsyncSession) -> str | None:
    """Its name; `None`: chains end where they end. It may have been deleted since it was named."""
    return await fallback.read(session)


async def set_fallback(tx: Transaction, reference: str | None, *, dangling: bool = False) -> str | None:
    """Name it, by id or name, or no longer have one; returns its name. Raises `Invalid`: there is none. With
    `dangling` it is a name, and may be that of none."""
    name = reference if reference is None or dangling else await _name_of(tx, reference)
    await jumps.hold_routing(tx)
    before = await fallback.read(tx.session)
    if before == name:
        return name
    await fallback.write(tx.session, name)
    tx.audit(
        "fallback_model.set", "setting", None, "fallback_model", {"fallback_model": Change(before, name)}
    )
    tx.content_changed()
    return name


async def _name_of(tx: Transaction, reference: str) -> str:
    row = await frontend_models.find(tx.session, reference, lock=True)
    if row is None:
        absent = missing("frontend model", reference)
        raise Invalid(absent.code, absent.message, "frontend_model")
    return row.name
