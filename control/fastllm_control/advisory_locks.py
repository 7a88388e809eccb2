"""The advisory locks of the database, all of them, so that no two things share a key by accident.

They are taken for a transaction (`pg_advisory_xact_lock`): none can be left behind, and all work behind a
transaction pooler.
"""

from __future__ import annotations

from enum import IntEnum

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

_FASTLLM = 0x66617374_6C6C6D00  # "fastllm" and a byte of ours


class AdvisoryLock(IntEnum):
    """`MIGRATE`: one program migrates while the others wait. `PARTITIONS`: likewise for making partitions.
    `ADMINISTERING`: changes that may take somebody's way of administering away. `TARGET_NAMES`: the name
    space that provider models and pools share. `ROUTING`: rules and the fallback, so that
    two jumps which would close a circle between them are not written at once. `APPLY`: one configuration file
    is applied at a time."""

    MIGRATE = _FASTLLM + 1
    ADMINISTERING = _FASTLLM + 2
    PARTITIONS = _FASTLLM + 3
    TARGET_NAMES = _FASTLLM + 4
    ROUTING = _FASTLLM + 5
    APPLY = _FASTLLM + 6


async def take(session: AsyncSession | AsyncConnection, lock: AdvisoryLock) -> None:
    """Wait for the lock and hold it until the transaction ends."""
    await session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": int(lock)})
