"""A process that supervises an embedded Postgres, for tests of what happens when it is killed.

`python -m tests.fakes.postgres_process DATA_DIR [--uid N --gid N] [--programs DIR]` starts the server and
prints a line of JSON, then obeys lines on its standard input (`again` starts the server after it died, end of
input stops it). With `--uid` it becomes that user first, after everything has been imported: that user
may not be able to read where Python lies.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from fastllm_control.postgres import EmbeddedPostgres
from fastllm_control.postgres_install import Install, PostgresError


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--uid", type=int)
    parser.add_argument("--gid", type=int)
    parser.add_argument("--programs", type=Path)
    options = parser.parse_args()
    if options.uid is not None:
        os.setgroups([])
        os.setgid(options.gid)
        os.setuid(options.uid)
    # A suite that runs in the background of a script inherits an ignored SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    install = Install(options.programs) if options.programs else None
    server = EmbeddedPostgres(options.folder, durable=False, install=install)
    try:
        _serve(server)
    except PostgresError as error:
        _say({"error": str(error)})
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        server.stop()
    return 0


def _serve(server: EmbeddedPostgres) -> None:
    _say({"url": server.start(), "postmaster": server.pid})
    for line in sys.stdin:
        if line.strip() == "again":
            # As a supervisor sees it: the kernel may take a moment to report the death.
            while server.pid is not None:
                os.sched_yield()
            _say({"url": server.start(), "postmaster": server.pid})


def _say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)  # noqa: T201 (its standard output is its interface)


class PostgresProcess:
    """Such a process, as the tests hold it."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        command = [sys.executable, "-m", "tests.fakes.postgres_process", str(folder), *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self._process.pid

    def __enter__(self) -> PostgresProcess:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()
        try:
            self._process.wait(30)
        finally:
            self._process.kill()
            self._process.wait()

    def answer(self) -> dict[str, Any]:
        """The next thing it says: `url` and `postmaster`, or `error`."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "it ended without a word"
        said: dict[str, Any] = json.loads(line)
        return said

    def again(self) -> dict[str, Any]:
        """Have it start the server again."""
        assert self._process.stdin is not None
        self._process.stdin.write("again\n")
        self._process.stdin.flush()
        return self.answer()

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def finish(self) -> int:
        """Let it stop in order; its exit code."""
        assert self._process.stdin is not None
        if not self._process.stdin.closed:
            self._process.stdin.close()
        return self._process.wait(30)

    def wait(self) -> int:
        return self._process.wait(30)


if __name__ == "__main__":
    sys.exit(main())
