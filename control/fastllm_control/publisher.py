"""Publishing: hears of a new version, builds its snapshot, answers the polls that wait for it.

Two ways lead to a new version, so that nothing is missed: Postgres's notification, within milliseconds, and a
look at the version row every `check_seconds`, for when the listening connection is broken or cannot be had
(behind a transaction pooler). Whatever fails, the last good snapshot stays published and building is tried
again.

Mutable state: what is published now, the event that its replacement will set, and the count of failures.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import msgspec

from fastllm_control.errors import Unavailable
from fastllm_control.failures import refusal_of
from fastllm_control.observe import Log
from fastllm_control.provider_secrets import Open
from fastllm_control.repositories import content
from fastllm_control.repositories import published_snapshots as history
from fastllm_control.snapshot import Built, Dropped, build
from fastllm_control.snapshot_rows import Rows
from fastllm_control.transaction import CHANNEL, Database
from fastllm_shared.snapshot import Snapshot, encode_snapshot, etag_of

Connect = Callable[[], Awaitable["asyncpg.Connection[Any]"]]
"""Opens a connection of its own for listening."""

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0
_COMPRESSION = 6


class Published(msgspec.Struct, frozen=True):
    """A version as it goes over the wire, encoded once. `packed` is `wire` under gzip."""

    snapshot: Snapshot
    dropped: tuple[Dropped, ...]
    wire: bytes
    packed: bytes
    hash: bytes
    has_credentials: bool

    @property
    def version(self) -> int:
        return self.snapshot.version

    @property
    def etag(self) -> str:
        return etag_of(self.version)


def publish(built: Built) -> Published:
    """Encode what was built."""
    wire = encode_snapshot(built.snapshot)
    return Published(
        snapshot=built.snapshot,
        dropped=built.dropped,
        wire=wire,
        packed=gzip.compress(wire, _COMPRESSION, mtime=0),
        hash=hashlib.sha256(wire).digest(),
        has_credentials=any(
            provider.credential is not None or provider.extra_headers for provider in built.snapshot.providers
        ),
    )


class Publisher:
    """`current` is `None` until the first snapshot is built; `failures` counts builds that failed and
    `last_error` says why the last one did, `None` once one has succeeded."""

    def __init__(
        self,
        database: Database,
        connect: Connect,
        open_secret: Open,
        log: Log,
        check_seconds: float = 0.5,
    ) -> None:
        self._database = database
        self._connect = connect
        self._open_secret = open_secret
        self._log = log
        self._check_seconds = check_seconds
        self._wake = asyncio.Event()
        self._changed = asyncio.Event()
        self._closing = False
        self.current: Published | None = None
        self.failures = 0
        self.last_error: str | None = None
        self._recorded = 0

    @asynccontextmanager
    async def running(self, stopping: asyncio.Event) -> AsyncIterator[None]:
        """Publishes for as long as this is open; polls are let go as soon as `stopping` is set."""
        steps = (self._listen(), self._keep_up(), self._close_when(stopping))
        tasks = [asyncio.create_task(step) for step in steps]
        try:
            yield
        finally:
            self.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def close(self) -> None:
        """Answer every waiting poll now, and let no new one wait."""
        self._closing = True
        self._announce()

    async def newer_than(self, version: int, wait_seconds: float) -> Published | None:
        """What is published if it is newer than `version`; else waits for it, and gives up with `None`
        after `wait_seconds` or when the publisher closes."""
        deadline = asyncio.get_running_loop().time() + wait_seconds
        while True:
            # The event is taken before looking: what is published after the look has set this very one.
            changed = self._changed
            if self.current is not None and self.current.version > version:
                return self.current
            if self._closing:
                return None
            try:
                async with asyncio.timeout_at(deadline):
                    await changed.wait()
            except TimeoutError:
                return None

    async def catch_up(self) -> bool:
        """Publish the newest version unless that is so already; returns whether something was published.

        Raises whatever reading or building raises.
        """
        async with self._database.read() as session:
            version, line = await content.version(session)
            if self.current is not None and self._is_current(version, line):
                return False
            rows = await content.read(session)
        published = await asyncio.to_thread(self._build, rows)
        self.current = published
        self._announce()
        self._log.info(
            "snapshot published",
            version=published.version,
            bytes=len(published.wire),
            packed=len(published.packed),
        )
        for lost in published.dropped:
            self._log.error(
                "left out of the snapshot", kind=lost.kind, id=lost.id, name=lost.name, reason=lost.reason
            )
        return True

    def _is_current(self, version: int, line: str) -> bool:
        published = self.current
        return published is not None and (published.version, published.snapshot.history) == (version, line)

    def _build(self, rows: Rows) -> Published:
        return publish(build(rows, self._open_secret))

    def _announce(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _keep_up(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while True:
            self._wake.clear()
            try:
                await self.catch_up()
                self.last_error = None
                pause = FIRST_PAUSE_SECONDS
                wait = self._check_seconds
            except Exception as error:  # noqa: BLE001 (whatever building raises, the last good one stays published)
                self._failed(error)
                wait = pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
            await self._record()
            await self._woken_within(wait)

    def _failed(self, error: Exception) -> None:
        # A database that is away is no failure of building: nothing can have been committed.
        away = isinstance(refusal_of(error), Unavailable)
        self.failures += not away
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        if reason != self.last_error and away:
            self._log.warning("database not reached, the last snapshot stays", reason=reason)
        elif reason != self.last_error:
            self._log.error("snapshot not built", reason=reason, exc_info=error)
        self.last_error = reason

    async def _record(self) -> None:
        published = self.current
        if published is None or published.version == self._recorded:
            return
        try:
            async with self._database.engine.begin() as connection:
                await history.record(connection, published.version, published.hash)
        except Exception as error:  # noqa: BLE001 (publishing goes on, whatever writing down its history met)
            self._log.warning("version not recorded", version=published.version, reason=type(error).__name__)
        else:
            self._recorded = published.version

    async def _close_when(self, stopping: asyncio.Event) -> None:
        await stopping.wait()
        self.close()

    async def _woken_within(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _listen(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                await self._listen_once()
                pause = FIRST_PAUSE_SECONDS
            except (
                OSError,
                asyncpg.PostgresError,
                asyncpg.InterfaceError,
                asyncpg.InternalClientError,
            ) as error:
                self._log.warning("not listening for new versions", reason=type(error).__name__)
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 (jitter)

    async def _listen_once(self) -> None:
        """Listen until the connection ends."""
        connection = await self._connect()
        ended = asyncio.Event()
        try:
            connection.add_termination_listener(lambda _: ended.set())
            await connection.add_listener(CHANNEL, lambda *_: self._wake.set())
            # What was committed before the first notification could arrive.
            self._wake.set()
            await ended.wait()
        finally:
            connection.terminate()
