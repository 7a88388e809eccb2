"""Names that stand in the conditions of routing rules: SQL only."""

from __future__ import annotations

from typing import Literal

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from fastllm_control.advisory_locks import AdvisoryLock, take

_RENAME = text(
    "UPDATE routing_rules SET conditions = jsonb_set(conditions, ARRAY[:field], ("
    "SELECT jsonb_agg(CASE WHEN entry.value = to_jsonb(CAST(:before AS text))"
    " THEN to_jsonb(CAST(:after AS text)) ELSE entry.value END ORDER BY entry.place)"
    " FROM jsonb_array_elements(conditions -> :field) WITH ORDINALITY AS entry (value, place)))"
    # The operator is false, not an error, where the field is absent or null.
    " WHERE conditions -> :field @> to_jsonb(CAST(:before AS text))"
)


async def rename(
    session: AsyncSession, field: Literal["principals", "roles"], before: str, after: str
) -> None:
    """Rules that name a principal or a role follow it when it is renamed."""
    await take(session, AdvisoryLock.ROUTING)
    await session.execute(_RENAME, {"field": field, "before": before, "after": after})
