"""All tables at once, for what must see all of them: migrations and their tests."""

from __future__ import annotations

from fastllm_control.tables import access, audit, configuration, fleet, usage
from fastllm_control.tables.base import Base

MODULES = (access, audit, configuration, fleet, usage)
METADATA = Base.metadata
