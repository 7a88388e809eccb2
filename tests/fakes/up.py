"""`fastllm up` as a process, as the tests hold it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.fakes.process_table import family, wait_until_gone


class RunningUp:
    """One run on `data_dir`, on free ports. The block's end kills whatever a test has left of it."""

    def __init__(
        self,
        data_dir: Path,
        *arguments: str,
        environ: dict[str, str] | None = None,
        python: str = sys.executable,
        uid: int | None = None,
        gid: int | None = None,
    ) -> None:
        self.data_dir = data_dir
        self.ready_file = data_dir / "ready.json"
        self._out = data_dir.with_name(data_dir.name + ".out")
        ports = [
            flag for name in ("--port", "--control-port") if name not in arguments for flag in (name, "0")
        ]
        command = [python, "-P", "-m", "fastllm_control", "up", "--data-dir", str(data_dir)]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("FASTLLM_")}
        with self._out.open("wb") as out:
            self._process = subprocess.Popen(
                [*command, *ports, *arguments],
                env={**inherited, **(environ or {})},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                user=uid,
                group=gid,
                extra_groups=None if uid is None else [],
            )
        self.pid = self._process.pid
        self._seen: set[int] = {self.pid}

    def __enter__(self) -> RunningUp:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        assert self.left() == []

    @property
    def output(self) -> str:
        """What it has printed so far."""
        return self._out.read_text()

    def ready(self, within_seconds: float = 90.0) -> dict[str, Any]:
        """The ready file, as soon as there is one."""
        deadline = time.monotonic() + within_seconds
        while not self.ready_file.exists():
            assert self._process.poll() is None, self.output
            assert time.monotonic() < deadline, self.output
            time.sleep(0.02)
        found: dict[str, Any] = json.loads(self.ready_file.read_text())
        return found

    def ready_unlike(self, pid: int, *path: str | int, within_seconds: float = 30.0) -> dict[str, Any]:
        """The ready file once the pid at `path` below `pids` is another than `pid`."""
        deadline = time.monotonic() + within_seconds
        while True:
            found = self.ready()
            at: Any = found["pids"]
            for step in path:
                at = at[step]
            if at not in (pid, None):
                return found
            assert time.monotonic() < deadline, self.output
            time.sleep(0.02)

    def members(self) -> list[int]:
        """Every process of it that runs now."""
        found = family(self.pid)
        self._seen.update(found)
        return found

    def left(self, within_seconds: float = 15.0) -> list[int]:
        """What still runs of all that `members` has ever seen."""
        return wait_until_gone(sorted(self._seen), within_seconds)

    def send(self, number: int) -> None:
        self.members()
        self._process.send_signal(number)

    def wait(self, within_seconds: float = 60.0) -> int:
        """Its exit code, once it has ended."""
        return self._process.wait(within_seconds)
