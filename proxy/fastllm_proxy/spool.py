"""Uploads on disk: unlinked temporary files that hold what is too large to keep in memory.

A file has no name, so it is gone with its last descriptor, however the process ends. Disks are slow at times:
every call on a file runs in a thread of the spool's own, in blocks, and never in one that resolves names.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol, TypeVar

from fastllm_proxy import refusals
from fastllm_proxy.observe import Log

BLOCK_BYTES: Final = 256 * 1024
_THREADS: Final = 2

Result = TypeVar("Result")


class File(Protocol):
    """An open file, without any buffer."""

    def fileno(self) -> int: ...

    def close(self) -> None: ...


class Spools:
    """Makes spools in `folder`; `None` is the system's folder for temporary files."""

    __slots__ = ("_complained", "_folder", "_log", "_threads", "open_files")

    def __init__(self, log: Log, folder: str | None = None) -> None:
        self._log = log
        self._folder = folder
        self._threads = ThreadPoolExecutor(_THREADS, "spool")
        self._complained = False
        self.open_files = 0

    async def open(self) -> Spool:
        """A new, empty one. Raises `Refused` 503 when there is no room for it."""
        made = self.run(self._make)
        try:
            file = await self.result(made)
        except asyncio.CancelledError:
            made.add_done_callback(_close_made)
            raise
        self._complained = False
        self.open_files += 1
        return Spool(self, file)

    def close(self) -> None:
        """Starts nothing any more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _make(self) -> File:
        return tempfile.TemporaryFile(buffering=0, dir=self._folder)

    # Called by spools.

    def run(self, work: Callable[..., Result], *arguments: Any) -> asyncio.Future[Result]:
        """Does it in a thread. It is not undone when whoever waits for it is cancelled."""
        return asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    async def result(self, future: asyncio.Future[Result]) -> Result:
        """What came of it. Raises `Refused` 503 for what the system said no to."""
        try:
            return await asyncio.shield(future)
        except OSError as error:
            if not self._complained:  # the next request fares no better, and would say the same
                self._complained = True
                self._log.error("uploads cannot be kept on disk", cause=str(error))
            message = "this replica has no room for a large upload; try again"
            raise refusals.overloaded(message) from None


class Spool:
    """One upload. Written once, by `write` and `flush`; then read at any offset, as often as need be.

    State: `_waiting` is what is not written yet, `_size` what has been given to threads to write; `_running`
    are the calls in threads, which must end before the descriptor is closed: its number may soon be
    somebody else's.
    """

    __slots__ = ("_closed", "_file", "_running", "_size", "_spools", "_waiting", "_waiting_bytes")

    def __init__(self, spools: Spools, file: File) -> None:
        self._spools = spools
        self._file = file
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._size = 0
        self._running: set[asyncio.Future[Any]] = set()
        self._closed = False

    async def write(self, piece: bytes) -> None:
        self._waiting.append(piece)
        self._waiting_bytes += len(piece)
        if self._waiting_bytes >= BLOCK_BYTES:
            await self.flush()

    async def flush(self) -> None:
        """Writes what waits. Raises `Refused` 503 when the disk takes no more."""
        pieces, size = self._waiting, self._waiting_bytes
        self._waiting, self._waiting_bytes = [], 0
        offset, self._size = self._size, self._size + size
        await self._in_thread(_write_all, self._file.fileno(), pieces, offset)

    async def read(self, offset: int, size: int) -> bytes:
        """At most `size` bytes; raises `Refused` 503 when they cannot be read."""
        return await self._in_thread(os.pread, self._file.fileno(), size, offset)

    def close(self) -> None:
        """Gives the disk's room back. Idempotent; what is under way in a thread ends first."""
        if not self._closed:
            self._closed = True
            self._waiting.clear()
            self._spools.open_files -= 1
            if not self._running:
                self._file.close()

    async def _in_thread(self, work: Callable[..., Result], *arguments: Any) -> Result:
        future = self._spools.run(work, *arguments)
        self._running.add(future)
        future.add_done_callback(self._ran)
        return await self._spools.result(future)

    def _ran(self, future: asyncio.Future[Any]) -> None:
        self._running.discard(future)
        if self._closed and not self._running:
            self._file.close()


def _write_all(descriptor: int, pieces: list[bytes], offset: int) -> None:
    view = memoryview(b"".join(pieces))
    while view:
        written = os.pwrite(descriptor, view, offset)
        offset += written
        view = view[written:]


def _close_made(future: asyncio.Future[File]) -> None:
    if not future.cancelled() and future.exception() is None:
        future.result().close()
