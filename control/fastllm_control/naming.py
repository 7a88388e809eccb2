"""Names of things, and paths that take an id or a name."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement
from sqlalchemy.orm import InstrumentedAttribute

from fastllm_control.errors import Invalid, NotFound
from fastllm_shared.ids import has_uuid_shape

Name = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=200,
        # No control characters, and no white space at either end.
        pattern=r"^[^\s\x00-\x1f\x7f]([^\x00-\x1f\x7f]*[^\s\x00-\x1f\x7f])?$(?!\n)",
        description="1 to 200 characters, not of a UUID's shape",
    ),
]


def refuse_uuid(name: str, field: str = "name") -> None:
    """Raise `Invalid` for a name that reads as an id: every path takes both."""
    if has_uuid_shape(name):
        raise Invalid(
            "invalid_name", "a name of a UUID's shape could be taken for an id: choose another", field
        )


def id_of(reference: str) -> UUID | None:
    """The id that a reference is, or `None` when it is a name."""
    return UUID(reference) if has_uuid_shape(reference) else None


def is_named(
    reference: str, id_column: InstrumentedAttribute[UUID], name_column: InstrumentedAttribute[str]
) -> ColumnElement[bool]:
    """The condition that selects what `reference`, an id or a name, stands for."""
    identity = id_of(reference)
    condition: Any = name_column == reference if identity is None else id_column == identity
    return condition  # type: ignore[no-any-return]


def required_id(reference: str, kind: str) -> UUID:
    """The id in a path whose things have no names; raises `NotFound` for anything else."""
    identity = id_of(reference)
    if identity is None:
        raise missing(kind, reference)
    return identity


def missing(kind: str, reference: str, field: str | None = None) -> NotFound:
    """The refusal for a reference to nothing, e.g. `missing("principal", "team-b")`."""
    shown = reference if len(reference) <= 200 else reference[:200] + "…"
    return NotFound(f"{kind.replace(' ', '_')}_not_found", f"there is no {kind} {shown!r}", field)
