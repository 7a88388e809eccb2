"""All tables at once, for what must see all of them: migrations and their tests."""

from __future__ import annotations

from fastllm_control.tables import access, audit, configuration, fleet, usage
from fastllm_control.tables.base import Base

MODULES = (access, audit, configuration, fleet, usage)
METADATA = Base.metadata


def is_modelled(name: str | None, kind: str, parents: object) -> bool:
    """Whether comparisons of the schema look at it: partitions come and go with time (`partitions`)."""
    del parents
    return not (kind == "table" and name is not None and name.startswith("usage_events_"))
