"""Files that only their owner may read, written whole or not at all; and the lock on a data folder."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO


class FolderInUse(Exception):
    """Another process holds the lock; the text names it."""


def write_private(path: Path, content: str) -> None:
    """Put `content` at `path` with mode 0600: a reader sees the old text or the new, never a part."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # 0600 from birth
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def read_or_make(path: Path, make: Callable[[], str]) -> str:
    """The text kept at `path`, without the line end; made and written first if there is none."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        made = make()
        write_private(path, made + "\n")
        return made


class FolderLock:
    """Who works on a folder: held through an open file, so that the system lets go when we die."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held: IO[str] | None = None

    def __enter__(self) -> FolderLock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def acquire(self) -> None:
        """Take it, or keep it. Raises `FolderInUse` at once when another process has it."""
        if self._held is not None:
            return
        file = self._path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            file.close()
            raise FolderInUse(
                f"{self._path.parent} is in use by another FastLLM (pid {holder}):"
                " stop that one, or choose another folder"
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        self._held = file

    def release(self) -> None:
        """Let go; the file stays, because removing it would race with the next one to open it."""
        if self._held is not None:
            self._held.close()
            self._held = None
