"""The processes that `fastllm up` runs: started on a leash, started again when they die, ended in order."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from fastllm_control.leash import die_with_parent
from fastllm_control.log_files import LogFile
from fastllm_control.observe import Log
from fastllm_control.postgres import EmbeddedPostgres, PortTaken
from fastllm_control.postgres_install import PostgresError

_TICK_SECONDS = 0.1
_TRIM_EVERY_TICKS = 600
_PORTS_TRIED = 5


class Child(Protocol):
    """One process under supervision. `pid` is `None` while it does not run."""

    name: str
    log: LogFile

    @property
    def pid(self) -> int | None: ...

    def start(self) -> None:
        """Fork it, without waiting for it to answer. Raises `OSError` or `PostgresError`."""

    async def stop(self) -> None:
        """End it in order, and by force if that takes too long."""

    def kill(self) -> None:
        """End it now."""


class Process:
    """A program of ours. SIGTERM ends it in order; after `grace_seconds` it is killed."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environ: Mapping[str, str],
        log_file: Path,
        grace_seconds: float,
    ) -> None:
        self.name = name
        self.log = LogFile(log_file)
        self._command = tuple(command)
        self._environ = dict(environ)
        self._grace_seconds = grace_seconds
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def start(self) -> None:
        with self.log.open() as log:
            self._process = subprocess.Popen(  # noqa: S603 (our own program)
                self._command,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # the terminal's Ctrl-C is for `up`, which ends them in order
                # Not SIGTERM: a process that is stopped or hangs must go too, and with the database and
                # the control plane gone there is nobody left to hand anything to.
                preexec_fn=die_with_parent(signal.SIGKILL),
            )

    async def stop(self) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.terminate()
        deadline = time.monotonic() + self._grace_seconds
        while process.poll() is None:
            if time.monotonic() > deadline:
                process.kill()
            await asyncio.sleep(_TICK_SECONDS / 5)

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()


class PostgresChild:
    """The embedded Postgres as one of the children."""

    name = "postgres"

    def __init__(self, server: EmbeddedPostgres) -> None:
        self._server = server
        self.log = server.log

    @property
    def pid(self) -> int | None:
        return self._server.pid

    def start(self) -> None:
        self._server.launch()

    async def first_start(self) -> str:
        """Start it and wait until it answers; returns the URL of the database. Raises `PostgresError`."""
        for _ in range(_PORTS_TRIED):
            self.start()
            try:
                await asyncio.to_thread(self._server.wait_ready)
            except PortTaken:
                continue
            return self._server.url()
        raise PostgresError(f"found no free port for Postgres in {_PORTS_TRIED} attempts")

    async def stop(self) -> None:
        await asyncio.to_thread(self._server.stop)

    def kill(self) -> None:
        self._server.stop(grace_seconds=1.0)


class Restarts:
    """When a child that died may start again: at once after a good life, else later and later."""

    def __init__(
        self, first_seconds: float = 0.1, longest_seconds: float = 10.0, good_life_seconds: float = 30.0
    ):
        self._first_seconds = first_seconds
        self._longest_seconds = longest_seconds
        self._good_life_seconds = good_life_seconds
        self._next_seconds = first_seconds

    def delay(self, lived_seconds: float) -> float:
        """How long to wait after a life of `lived_seconds`."""
        if lived_seconds >= self._good_life_seconds:
            self._next_seconds = self._first_seconds
        now, self._next_seconds = self._next_seconds, min(self._next_seconds * 2, self._longest_seconds)
        return now


class _Watch:
    """What the supervisor knows of one child."""

    __slots__ = ("child", "due_at", "restarts", "started_at")

    def __init__(self, child: Child, now: float) -> None:
        self.child = child
        self.restarts = Restarts()
        self.started_at = now
        self.due_at: float | None = None


class Supervisor:
    """Keeps children running. `changed` is called whenever one has a new pid."""

    def __init__(
        self, log: Log, changed: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = log
        self._changed = changed
        self._clock = clock
        self._watches: list[_Watch] = []

    def watch(self, child: Child) -> None:
        """Have a child, which may not have been started yet, ended with the others, and before those that
        were given earlier; from `run` on it is kept running."""
        self._watches.append(_Watch(child, self._clock()))

    def add(self, child: Child) -> None:
        """Watch a child and start it."""
        self.watch(child)
        child.start()

    async def run(self) -> None:
        """Watch until cancelled."""
        ticks = 0
        while True:
            self.turn()
            ticks += 1
            if ticks % _TRIM_EVERY_TICKS == 0:
                for watch in self._watches:
                    watch.child.log.trim()
            await asyncio.sleep(_TICK_SECONDS)

    def turn(self) -> None:
        """Look at every child once; start those whose time has come."""
        now = self._clock()
        for watch in self._watches:
            if watch.child.pid is not None:
                continue
            if watch.due_at is None:
                delay = watch.restarts.delay(now - watch.started_at)
                watch.due_at = now + delay
                self._log.warning(
                    "a process died",
                    process=watch.child.name,
                    restart_in_seconds=delay,
                    log=str(watch.child.log.path),
                )
            elif now >= watch.due_at:
                self._start_again(watch, now)

    async def stop(self) -> None:
        """End all, in groups: the one that started last first, children of one name's stem together."""
        while self._watches:
            last = self._watches[-1]
            group = [watch for watch in self._watches if _stem(watch.child.name) == _stem(last.child.name)]
            await asyncio.gather(*(watch.child.stop() for watch in group))
            self._watches = [watch for watch in self._watches if watch not in group]

    def kill(self) -> None:
        """End all now; may be called while `stop` waits."""
        for watch in reversed(self._watches):
            watch.child.kill()

    def _start_again(self, watch: _Watch, now: float) -> None:
        watch.started_at, watch.due_at = now, None
        try:
            watch.child.start()
        except (OSError, PostgresError) as error:
            self._log.error("a process cannot be started", process=watch.child.name, error=str(error))
        else:
            self._log.info("a process was restarted", process=watch.child.name, pid=watch.child.pid)
            self._changed()


def _stem(name: str) -> str:
    return name.rstrip("0123456789")
