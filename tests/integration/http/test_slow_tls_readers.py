"""Clients over TLS that take nothing of a large answer: each holds little, and the engine is stopped."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from tests.fakes.certificates import Authority
from tests.fakes.control import FakeControl
from tests.fakes.engine import Answer, FakeEngine
from tests.fakes.proxy import ProxyProcess, run_proxy
from tests.fakes.replica import KEY, snapshot_of
from tests.integration.http.hostile import request
from tests.integration.http.secure_client import SecureClient

READERS: Final = 40
ANSWER_BYTES: Final = 20_000_000
HELD_BYTES: Final = 384 * 1024
"""The watermark, one read of the engine's answer and what is encrypted of it come to half of this."""


def _resident_bytes(proxy: ProxyProcess) -> int:
    status = Path(f"/proc/{proxy.process.pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS"))


async def _still(engine: FakeEngine) -> int:
    """Waits until the engine gets rid of nothing any more; returns the bytes that have left it."""
    before = -1
    while (sent := sum(connection.sent for connection in engine.connections)) != before:
        before = sent
        await asyncio.sleep(0.3)
    return before


async def test_slow_readers_hold_little_each_and_stop_the_engine(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with FakeEngine.start() as engine, FakeControl.start() as control:
        engine.script("/chat/completions", Answer(body=b"x" * ANSWER_BYTES))
        control.publish(snapshot_of(engine.url))
        async with run_proxy(*authority.issue("127.0.0.1").flags, control_url=control.url) as proxy:
            await proxy.until("snapshot accepted")
            port = int(proxy.url.rpartition(":")[2])
            clients = [
                await SecureClient.connect(port, authority, receive_buffer=4096) for _ in range(READERS)
            ]
            before = _resident_bytes(proxy)
            for client in clients:
                await client.send(request(auth=f"Authorization: Bearer {KEY}\r\n".encode()))
            await engine.arrived(READERS)
            sent = await _still(engine)
            held = (_resident_bytes(proxy) - before) / READERS
            for client in clients:
                client.raw.close()
    assert sent < READERS * ANSWER_BYTES * 0.8  # the sockets' own buffers take some MiB each
    assert held < HELD_BYTES
