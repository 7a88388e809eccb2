"""`fastllm proxy` as a process, and a control plane as one: for what is about signals and kills."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from fastllm_shared.snapshot import Snapshot, encode_snapshot
from fastllm_shared.usage import UsageEvent
from tests.fakes.control import TOKEN

ROOT = Path(__file__).parents[2]
START_SECONDS = 20.0


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """This process's own, without settings that the shell may hold."""
    return {k: v for k, v in os.environ.items() if not k.startswith("FASTLLM_")} | dict(variables)


class ProxyProcess:
    """A running proxy. `logged` are the lines of its log so far, decoded; `url` is where it listens."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.logged: list[dict[str, Any]] = []
        self.stdout = bytearray()
        self._more = asyncio.Event()
        self._readers = [asyncio.create_task(self._read_log()), asyncio.create_task(self._read_out())]

    @property
    def url(self) -> str:
        return str(self.events("listening")[0]["url"])

    def events(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.logged if line.get("event") == event]

    async def until(self, event: str, count: int = 1, seconds: float = START_SECONDS) -> dict[str, Any]:
        """Waits for a log line; returns the last of `count` such lines."""
        async with asyncio.timeout(seconds):
            while len(self.events(event)) < count:
                self._more.clear()
                await self._more.wait()
        return self.events(event)[count - 1]

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def exited(self, seconds: float = START_SECONDS) -> int:
        """The exit code, once all its output has been read."""
        async with asyncio.timeout(seconds):
            code = await self.process.wait()
            await asyncio.gather(*self._readers)
        return code

    async def _read_log(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            try:
                self.logged.append(msgspec.json.decode(line))
            except msgspec.DecodeError:
                self.logged.append({"event": None, "text": line.decode("utf-8", "replace")})
            self._more.set()

    async def _read_out(self) -> None:
        while self.process.stdout and (piece := await self.process.stdout.read(65_536)):
            self.stdout += piece


@asynccontextmanager
async def run_proxy(
    *arguments: str, control_url: str, token: str = TOKEN, listening: bool = True, stdout: int = PIPE
) -> AsyncIterator[ProxyProcess]:
    """A proxy on a free port, logging JSON; killed at the end if it still runs. `stdout`: a descriptor of the
    caller's, else it is collected."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "fastllm_proxy", "--port", "0", "--log-format", "json", "--control-url", control_url),
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=stdout,
        stderr=PIPE,
        cwd=ROOT,
        env=environment({"FASTLLM_PROXY_TOKEN": token}),
    )
    proxy = ProxyProcess(process)
    try:
        if listening:
            await proxy.until("listening")
        yield proxy
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await proxy.exited()


class ControlProcess:
    """`tests.fakes.control` as a process that can be stopped, killed and started again where it was."""

    def __init__(self, folder: Path) -> None:
        self._snapshot = folder / "snapshot"
        self._journal = folder / "journal"
        self._process: Process | None = None
        self.url = ""

    def publish(self, snapshot: Snapshot) -> None:
        fresh = self._snapshot.with_suffix(".new")
        fresh.write_bytes(encode_snapshot(snapshot))
        fresh.replace(self._snapshot)

    def stored(self) -> list[UsageEvent]:
        if not self._journal.exists():
            return []
        lines = self._journal.read_bytes().splitlines()
        return [msgspec.json.decode(line, type=UsageEvent) for line in lines]

    async def until_stored(self, count: int, seconds: float = 15.0) -> list[UsageEvent]:
        async with asyncio.timeout(seconds):
            while len(self.stored()) < count:  # noqa: ASYNC110 - another process fills the journal
                await asyncio.sleep(0.02)
        return self.stored()

    async def start(self) -> None:
        port = self.url.rpartition(":")[2] or "0"
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.fakes.control", "--port", port),
            *("--snapshot", str(self._snapshot), "--journal", str(self._journal)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=PIPE,
            cwd=ROOT,
            env=environment({}),
        )
        assert self._process.stdout is not None
        async with asyncio.timeout(START_SECONDS):
            self.url = (await self._process.stdout.readline()).decode().strip()
        assert self.url, "the control plane did not start"

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def kill(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()


@asynccontextmanager
async def run_control(folder: Path) -> AsyncIterator[ControlProcess]:
    control = ControlProcess(folder)
    await control.start()
    try:
        yield control
    finally:
        await control.kill()
