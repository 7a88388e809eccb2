"""What a principal may use: limits per minute, and a budget per window."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec

from fastllm_control.errors import Invalid, NotFound
from fastllm_control.repositories import caps, principals
from fastllm_control.services.principals import require
from fastllm_control.tables.access import Budget, Limit
from fastllm_control.transaction import Change, Transaction
from fastllm_control.windows import Window, window_around, zone_of
from fastllm_shared.ids import uuid7
from fastllm_shared.snapshot import LimitsEntry

LIMIT_FIELDS = ("requests_per_min", "tokens_per_min", "max_concurrent")
BUDGET_FIELDS = ("tokens_total", "cost_total_micros", "window", "timezone", "starts_at")


class BudgetTerms(msgspec.Struct, frozen=True):
    """Caps and window. `starts_at` makes windows roll from that instant instead of by the calendar."""

    tokens_total: int | None
    cost_total_micros: int | None
    window: Window
    timezone: str
    starts_at: datetime.datetime | None


async def set_limits(tx: Transaction, reference: str, wanted: LimitsEntry) -> None:
    """Replaces all three. Nothing set is no limit at all, and no row."""
    holder = await require(tx, reference)
    await principals.lock(tx.session, holder.id)
    row = await caps.limit_of(tx.session, holder.id, lock=True)
    changes = _changes(row, wanted, LIMIT_FIELDS)
    if not changes:
        return
    if wanted == LimitsEntry():
        await tx.session.delete(row)
    else:
        row = row or Limit(principal_id=holder.id)
        tx.session.add(row)
        _assign(row, wanted, LIMIT_FIELDS)
    tx.audit("limits.set", "principal", holder.id, holder.name, changes)
    tx.content_changed()


async def set_budget(tx: Transaction, reference: str, wanted: BudgetTerms, now: datetime.datetime) -> Budget:
    """Replaces caps and window, and keeps what was used in a window that still runs. Raises `Invalid`."""
    if wanted.tokens_total is None and wanted.cost_total_micros is None:
        raise Invalid("no_cap", "a budget caps tokens_total, cost_total_micros or both", "tokens_total")
    try:
        zone = zone_of(wanted.timezone)
    except ValueError:
        message = "not a time zone of the IANA database, such as `Europe/Brussels` or `UTC`"
        raise Invalid("invalid_value", message, "timezone") from None
    try:
        start, end = window_around(now, wanted.window, zone, wanted.starts_at)
    except (OverflowError, ValueError):
        raise Invalid("invalid_value", "this instant is out of range", "starts_at") from None
    holder = await require(tx, reference)
    await principals.lock(tx.session, holder.id)
    row = await caps.budget_of(tx.session, holder.id, lock=True)
    changes = _changes(row, wanted, BUDGET_FIELDS)
    if row is not None and row.window_end <= now:
        row.tokens_used = row.cost_used_micros = 0
    row = row or Budget(id=uuid7(), principal_id=holder.id, tokens_used=0, cost_used_micros=0)
    tx.session.add(row)
    _assign(row, wanted, BUDGET_FIELDS)
    row.window_start, row.window_end = start, end
    if changes:
        tx.audit("budget.set", "principal", holder.id, holder.name, changes)
        tx.content_changed()
    return row


async def drop_budget(tx: Transaction, reference: str) -> None:
    """Raises `NotFound` when there is none."""
    holder = await require(tx, reference)
    row = await _budget(tx, holder.id, holder.name)
    await tx.session.delete(row)
    changes = {name: Change(_plain(getattr(row, name)), None) for name in BUDGET_FIELDS}
    tx.audit("budget.delete", "principal", holder.id, holder.name, changes)
    tx.content_changed()


async def reset_budget(tx: Transaction, reference: str) -> Budget:
    """What was used becomes 0, in the window that is running. Where nothing was, nothing changes."""
    holder = await require(tx, reference)
    row = await _budget(tx, holder.id, holder.name)
    changes = {
        "tokens_used": Change(row.tokens_used, 0),
        "cost_used_micros": Change(row.cost_used_micros, 0),
    }
    if row.tokens_used or row.cost_used_micros:
        row.tokens_used = row.cost_used_micros = 0
        tx.audit("budget.reset", "principal", holder.id, holder.name, changes)
    return row


async def _budget(tx: Transaction, principal_id: Any, name: str) -> Budget:
    row = await caps.budget_of(tx.session, principal_id, lock=True)
    if row is None:
        raise NotFound("budget_not_found", f"the principal {name!r} has no budget")
    return row


def _changes(row: object | None, wanted: msgspec.Struct, fields: tuple[str, ...]) -> dict[str, Change]:
    changes = {}
    for name in fields:
        before, after = _plain(getattr(row, name, None)), _plain(getattr(wanted, name))
        if before != after:
            changes[name] = Change(before, after)
    return changes


def _assign(row: object, wanted: msgspec.Struct, fields: tuple[str, ...]) -> None:
    for name in fields:
        setattr(row, name, getattr(wanted, name))


def _plain(value: Any) -> Any:
    # In UTC, so that one instant written with two offsets is no change.
    return value.astimezone(datetime.UTC).isoformat() if isinstance(value, datetime.datetime) else value
