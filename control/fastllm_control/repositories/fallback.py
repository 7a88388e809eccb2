"""The setting that names the fallback: SQL only."""

from __future__ import annotations

from sqlalchemy import delete, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from fastllm_control.repositories.content import FALLBACK_SETTING
from fastllm_control.tables.audit import SettingRow


async def read(session: AsyncSession) -> str | None:
    """The name that is set; a model of that name need not exist any more."""
    value = await session.scalar(select(SettingRow.value).where(SettingRow.name == FALLBACK_SETTING))
    return value if isinstance(value, str) else None


async def write(session: AsyncSession, name: str | None) -> None:
    """Set the name, or none."""
    if name is None:
        await session.execute(delete(SettingRow).where(SettingRow.name == FALLBACK_SETTING))
        return
    statement = insert(SettingRow).values(name=FALLBACK_SETTING, value=name)
    await session.execute(
        statement.on_conflict_do_update(index_elements=[SettingRow.name], set_={"value": name})
    )
