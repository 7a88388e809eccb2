"""A real `fastllm proxy` process in front of fake engines, for what is about a process's memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from fastllm_shared.usage import UsageEvent
from tests.fakes.control import FakeControl
from tests.fakes.edge import eventually
from tests.fakes.engine import FakeEngine
from tests.fakes.proxy import ProxyProcess, run_proxy
from tests.fakes.replica import KEY, snapshot_of
from tests.proxy.rig import Answered, Client


class Proxy:
    """Peak memory and clients of a running proxy."""

    def __init__(self, process: ProxyProcess, control: FakeControl) -> None:
        self._process = process
        self._control = control
        self.port = int(process.url.rpartition(":")[2])

    @property
    def pid(self) -> int:
        return self._process.process.pid

    @contextlib.contextmanager
    def flat(self, growth_bytes: int) -> Iterator[None]:
        """At no moment may the process's resident memory exceed what it was before by more than this."""
        folder = Path(f"/proc/{self.pid}")
        (folder / "clear_refs").write_text("5")  # the peak begins anew
        before = _kilobytes(folder / "status", "VmHWM")
        yield
        grown = (_kilobytes(folder / "status", "VmHWM") - before) * 1024
        assert grown <= growth_bytes, f"grown by {grown} bytes"

    def temporary_files(self) -> int:
        """Files that it holds open and that have no name."""
        found = 0
        for descriptor in Path(f"/proc/{self.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                target = str(descriptor.readlink())
                found += target.startswith("/") and target.endswith("(deleted)")
        return found

    async def connect(self) -> Client:
        return Client(*await asyncio.open_connection("127.0.0.1", self.port, limit=64 * 1024))

    async def post(self, path: str, body: bytes, headers: dict[str, str]) -> Answered:
        """One request on a connection of its own."""
        client = await self.connect()
        try:
            client.send(path, body, {"authorization": f"Bearer {KEY}", **headers})
            return await client.answer()
        finally:
            client.close()

    async def events(self, count: int) -> list[UsageEvent]:
        """The usage rows, once there are so many."""
        await eventually(lambda: len(self._control.stored) >= count)
        return list(self._control.stored.values())

    def complaints(self) -> list[dict[str, object]]:
        return [line for line in self._process.logged if line.get("level") in ("error", "critical")]


def _kilobytes(path: Path, name: str) -> int:
    found = [line.split()[1] for line in path.read_text().splitlines() if line.startswith(name + ":")]
    return int(found[0])


@contextlib.asynccontextmanager
async def real_proxy(*engines: FakeEngine, arguments: tuple[str, ...] = ()) -> AsyncIterator[Proxy]:
    """Serves `assistant` from all `engines`; nothing may have been logged as an error in the end."""
    async with FakeControl.start() as control:
        control.publish(snapshot_of(*(engine.url for engine in engines)))
        async with run_proxy(*arguments, control_url=control.url) as process:
            await process.until("listening")
            proxy = Proxy(process, control)
            # Another process: it tells nobody when it has its snapshot.
            while (await proxy.post("/v1/chat/completions", b"", {})).status == 503:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            yield proxy
            assert proxy.complaints() == []
