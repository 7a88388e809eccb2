"""Applying a PATCH to a row: what differs is set and noted, what does not is left alone."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import msgspec

from fastllm_control.access import Actor
from fastllm_control.transaction import Change


def given(patch: msgspec.Struct) -> dict[str, Any]:
    """The fields of a PATCH that were sent, by name: absent ones are `msgspec.UNSET`."""
    values = {name: getattr(patch, name) for name in patch.__struct_fields__}
    return {name: value for name, value in values.items() if value is not msgspec.UNSET}


def apply(row: Any, values: Mapping[str, Any]) -> dict[str, Change]:
    """Set `values` on `row`; returns what changed by it, as an auditor should read it."""
    changes: dict[str, Change] = {}
    for name, value in values.items():
        before = getattr(row, name)
        if before != value:
            setattr(row, name, value)
            changes[name] = Change(before, value)
    return changes


def change_state(actor: Actor, row: Any, values: Mapping[str, Any]) -> dict[str, Change]:
    """What a person wants of a provider or backend, with who and why; a new state forgets the old reason."""
    wanted: dict[str, Any] = {name: values[name] for name in ("state", "state_reason") if name in values}
    if wanted.get("state", row.state) != row.state:
        wanted.setdefault("state_reason", None)
    changes = apply(row, wanted)
    if changes:
        row.state_by = actor.name
        row.state_at = datetime.datetime.now(datetime.UTC)
    return changes


def created(row: Any, names: tuple[str, ...]) -> dict[str, Change]:
    """A new row's fields that are not empty, as an auditor should read them."""
    values = {name: getattr(row, name) for name in names}
    return {name: Change(None, value) for name, value in values.items() if value is not None}
