"""Files that child processes write their standard output to, kept from growing for ever."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import IO


class LogFile:
    """One file that processes append to; what goes beyond `limit_bytes` makes it start over, the text so
    far going to `NAME.old`."""

    def __init__(self, path: Path, limit_bytes: int = 16 << 20) -> None:
        self.path = path
        self._limit_bytes = limit_bytes
        self._from = 0

    def open(self) -> IO[bytes]:
        """For a new process to write to; `last_words` are counted from here."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.trim()
        log = self.path.open("ab")
        self._from = log.tell()
        return log

    def trim(self) -> None:
        """Start over if it is too long. Its writers append, so they go on at the new end by themselves."""
        if self.path.exists() and self.path.stat().st_size > self._limit_bytes:
            shutil.copyfile(self.path, self.path.with_name(self.path.name + ".old"))
            with self.path.open("r+b") as log:
                log.truncate(0)
            self._from = 0

    def last_words(self, lines: int = 8) -> str:
        """The end of what was written since `open`."""
        try:
            with self.path.open("rb") as log:
                end = log.seek(0, 2)
                log.seek(max(self._from if self._from <= end else 0, end - 8192))
                said = log.read().decode(errors="replace")
        except OSError as error:
            return str(error)
        return "\n".join(said.splitlines()[-lines:])
