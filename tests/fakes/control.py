"""A control plane that does as it is told: snapshot, usage and health reports on a real socket.

    async with FakeControl.start() as control:
        control.publish(snapshot)              # answers every poll that waits
        control.script("/usage", Scripted(status=500), Scripted(hang=True))
        …
        control.stored, control.reports, control.requests

As a process (to be stopped and killed): `python -m tests.fakes.control --snapshot FILE --journal FILE` prints
its URL; the snapshot is read from FILE whenever it changes, and each stored event is a line in the journal.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gzip
import sys
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
from aiohttp import web

from fastllm_shared.health import HealthReport, decode_report
from fastllm_shared.snapshot import Snapshot, decode_snapshot, encode_snapshot, etag_of
from fastllm_shared.usage import UsageAck, UsageEvent, decode_batch

TOKEN = "proxy-token-for-tests"


class Scripted(msgspec.Struct, frozen=True):
    """What one request gets in place of the right answer."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = {}
    delay_seconds: float = 0.0
    hang: bool = False
    reset: bool = False
    after_storing: bool = False
    """Do the right thing first and only answer wrongly: an acknowledgement that is lost."""


class Received(msgspec.Struct, frozen=True):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class FakeControl:
    def __init__(self, tokens: tuple[str, ...] = (TOKEN,), journal: Path | None = None) -> None:
        self.tokens = tokens
        self.requests: list[Received] = []
        self.reports: list[HealthReport] = []
        self.stored: dict[str, UsageEvent] = {}
        self.duplicates = 0
        self.bad_event_ids: set[str] = set()
        self.bad_event_status = 400
        self.url = ""
        self._snapshot: Snapshot | None = None
        self._published = asyncio.Event()
        self._scripts: dict[str, deque[Scripted]] = {}
        self._arrived = asyncio.Condition()
        self._journal = journal

    @classmethod
    @contextlib.asynccontextmanager
    async def start(
        cls, *, port: int = 0, tokens: tuple[str, ...] = (TOKEN,), journal: Path | None = None
    ) -> AsyncIterator[FakeControl]:
        control = cls(tokens, journal)
        runner = web.ServerRunner(web.Server(control._handle), shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        control.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield control
        finally:
            await runner.cleanup()

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def publish(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._published.set()
        self._published = asyncio.Event()

    def script(self, path: str, *answers: Scripted) -> None:
        """The next requests for `path` get these, in order; then the right answers again."""
        self._scripts.setdefault(path, deque()).extend(answers)

    def asked(self, path: str) -> list[Received]:
        return [request for request in self.requests if request.path.partition("?")[0] == path]

    async def wait_for(self, path: str, count: int, seconds: float = 5.0) -> None:
        """Until `path` has been asked so often."""
        async with asyncio.timeout(seconds), self._arrived:
            await self._arrived.wait_for(lambda: len(self.asked(path)) >= count)

    async def wait_stored(self, count: int, seconds: float = 5.0) -> None:
        async with asyncio.timeout(seconds), self._arrived:
            await self._arrived.wait_for(lambda: len(self.stored) >= count)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.requests.append(Received(request.method, request.path_qs, headers, body))
        async with self._arrived:
            self._arrived.notify_all()
        scripted = self._scripts.get(request.path)
        script = scripted.popleft() if scripted else None
        if script is not None:
            if script.after_storing:
                await self._answer(request, body)
            return await self._deviate(request, script)
        response = await self._answer(request, body)
        async with self._arrived:
            self._arrived.notify_all()
        return response

    async def _deviate(self, request: web.BaseRequest, script: Scripted) -> web.StreamResponse:
        await asyncio.sleep(script.delay_seconds)
        if script.hang:
            await asyncio.Event().wait()
        if script.reset and request.transport is not None:
            request.transport.abort()
        return web.Response(status=script.status, body=script.body, headers=script.headers)

    async def _answer(self, request: web.BaseRequest, body: bytes) -> web.Response:
        if request.headers.get("authorization", "").removeprefix("Bearer ") not in self.tokens:
            return web.Response(status=401, text='{"error":{"code":"unauthenticated"}}')
        match request.method, request.path:
            case "GET", "/snapshot":
                return await self._poll(request)
            case "POST", "/usage":
                return self._store(body)
            case "POST", "/health-report":
                self.reports.append(decode_report(body))
                return web.Response(text="{}")
        return web.Response(status=404)

    async def _poll(self, request: web.BaseRequest) -> web.Response:
        known = request.headers.get("if-none-match")
        published, snapshot = self._published, self._snapshot
        if snapshot is None or known == etag_of(snapshot.version):
            try:
                async with asyncio.timeout(float(request.query.get("wait", "0"))):
                    await published.wait()
            except TimeoutError:
                return web.Response(status=304 if known else 503)
        assert self._snapshot is not None
        return web.Response(
            body=gzip.compress(encode_snapshot(self._snapshot), 1),
            headers={"etag": etag_of(self._snapshot.version), "content-encoding": "gzip"},
        )

    def _store(self, body: bytes) -> web.Response:
        batch = decode_batch(body)
        if any(event.id in self.bad_event_ids for event in batch.events):
            return web.Response(status=self.bad_event_status, text='{"error":{"code":"invalid_event"}}')
        fresh = {event.id: event for event in batch.events if event.id not in self.stored}
        self.stored.update(fresh)
        self.duplicates += len(batch.events) - len(fresh)
        if self._journal is not None:
            with self._journal.open("ab") as journal:
                journal.writelines(msgspec.json.encode(event) + b"\n" for event in fresh.values())
        ack = UsageAck(stored=len(fresh), duplicates=len(batch.events) - len(fresh))
        return web.Response(body=msgspec.json.encode(ack), content_type="application/json")


async def _serve(port: int, snapshot: Path, journal: Path) -> None:
    async with FakeControl.start(port=port, journal=journal) as control:
        control.stored.update(_journalled(journal))
        sys.stdout.write(control.url + "\n")
        sys.stdout.flush()
        seen = b""
        while True:
            wire = _content(snapshot)
            if wire and wire != seen:
                seen = wire
                control.publish(decode_snapshot(wire))
            await asyncio.sleep(0.05)


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def _journalled(journal: Path) -> dict[str, UsageEvent]:
    """What an earlier life of this process stored."""
    events = [msgspec.json.decode(line, type=UsageEvent) for line in _content(journal).splitlines()]
    return {event.id: event for event in events}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--snapshot", type=Path, required=True)
    parser.add_argument("--journal", type=Path, required=True)
    options = parser.parse_args()
    asyncio.run(_serve(options.port, options.snapshot, options.journal))


if __name__ == "__main__":
    main()
