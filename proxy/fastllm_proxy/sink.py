"""Where log lines leave the process: a thread of its own writes them, so that a pipe that nobody reads
never stops the event loop. What does not fit is dropped and counted."""

from __future__ import annotations

import os
import threading
import time

CAPACITY_BYTES = 4 * 1024 * 1024
"""How much may wait for a reader: some 10,000 request lines."""


class LineSink:
    """Writes whole lines to a file descriptor, in order. Used from any thread; never blocks the caller.

    `dropped` counts lines that did not fit or could not be written.
    """

    def __init__(self, descriptor: int, *, capacity_bytes: int = CAPACITY_BYTES) -> None:
        self.dropped = 0
        self._descriptor = descriptor
        self._capacity = capacity_bytes
        self._changed = threading.Condition()
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._writing = False
        self._thread: threading.Thread | None = None

    def write(self, lines: bytes, count: int = 1) -> None:
        """Queues `count` lines, each with its line end."""
        with self._changed:
            if self._waiting_bytes + len(lines) > self._capacity:
                self.dropped += count
                return
            self._waiting.append(lines)
            self._waiting_bytes += len(lines)
            if self._thread is None:
                # A daemon: one that is stuck in a write must not keep the process from ending.
                self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self, seconds: float) -> bool:
        """Waits until all is written, at most so long; says whether it is."""
        until = time.monotonic() + seconds
        with self._changed:
            while self._waiting or self._writing:
                left = until - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
        return True

    def _run(self) -> None:
        while True:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
                while not self._waiting:
                    self._changed.wait()
                pieces, self._waiting = self._waiting, []
                self._waiting_bytes = 0
                self._writing = True
            self._write_all(b"".join(pieces))

    def _write_all(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._descriptor, view) :]
            except BlockingIOError:  # somebody made it non-blocking: this thread may wait
                time.sleep(0.01)
            except OSError:  # closed at the other end: nobody is left to tell
                with self._changed:
                    self.dropped += bytes(view).count(b"\n")
                return
