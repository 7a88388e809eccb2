"""What the usage and fleet tables need from time to time: next weeks' partitions, no replicas of last week.

Any control plane may do it at any time, all of them at once: the work is idempotent and takes its own locks.
Retention, which must run once, will belong to the leader.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from datetime import datetime

from sqlalchemy.exc import DBAPIError

from fastllm_control import partitions
from fastllm_control.access import Actor
from fastllm_control.observe import Log
from fastllm_control.services import fleet
from fastllm_control.transaction import Database

INTERVAL_SECONDS = 3600.0
RETRY_SECONDS = 60.0
_ACTOR = Actor(name="upkeep", via="job")


class Upkeep:
    """A turn at once and then every hour; one that fails is logged and tried again after a minute."""

    def __init__(self, database: Database, log: Log, clock: Callable[[], datetime]) -> None:
        self._database = database
        self._log = log
        self._clock = clock

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep turning for as long as this is open."""
        task = asyncio.create_task(self.run(), name="upkeep")
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def run(self) -> None:
        """Never returns."""
        while True:
            done = await self._tried()
            await asyncio.sleep(INTERVAL_SECONDS if done else RETRY_SECONDS)

    async def turn(self) -> list[str]:
        """Do it once; returns the names of the partitions that were made."""
        async with self._database.begin(_ACTOR) as tx:
            made = await partitions.ensure(tx.session, self._clock())
        async with self._database.begin(_ACTOR) as tx:
            await fleet.forget_old(tx.session)
        return made

    async def _tried(self) -> bool:
        try:
            made = await self.turn()
        except Exception as error:  # noqa: BLE001 (whatever one turn met, the next one is made all the same)
            cause = error.orig if isinstance(error, DBAPIError) else error
            self._log.warning("upkeep failed, tried again later", cause=f"{type(cause).__name__}: {cause}")
            return False
        if made:
            self._log.info("partitions made", names=made)
        return True
