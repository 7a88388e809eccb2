"""Clients that do not read: they hold back their engines, and cost the gateway next to nothing."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from tests.fakes.control import FakeControl
from tests.fakes.engine import Answer, FakeEngine
from tests.fakes.proxy import ProxyProcess, run_proxy
from tests.fakes.replica import KEY, snapshot_of
from tests.integration.http.crowd import PIECES, TOTAL_BYTES, Framing, PouringEngine, Reader, checksum
from tests.integration.http.processes import real_proxy
from tests.proxy.rig import chat, gateway

READERS = 500
READ_TO_THE_END = 3
"""Of the 500; all of them would be 5 GB."""

KIB_EACH = 64


def rss_kib(proxy: ProxyProcess) -> int:
    text = Path(f"/proc/{proxy.process.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+)", text)
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize("framing", ["length", "chunked", "sse"])
async def test_500_that_do_not_read_10_mb_each_hold_less_than_64_kib(framing: Framing) -> None:
    async with PouringEngine.start() as engine, FakeControl.start() as control:
        control.publish(snapshot_of(engine.url))
        async with run_proxy("--health-interval", "3600", control_url=control.url) as proxy:
            await proxy.until("snapshot accepted")
            port = int(proxy.url.rpartition(":")[2])
            # One before all others, so that what is made once does not count.
            first = await Reader.connect(port, KEY, framing)
            await engine.stopped()
            before = rss_kib(proxy)
            readers = [await Reader.connect(port, KEY, framing) for _ in range(READERS)]
            try:
                await engine.stopped()
                assert sum(connection.paused for connection in engine.connections) == READERS + 1
                assert engine.poured < (READERS + 1) * PIECES // 4
                assert (rss_kib(proxy) - before) / READERS < KIB_EACH
                chosen = [first, *readers[:READ_TO_THE_END]]
                for reader in chosen:
                    reader.go()
                async with asyncio.timeout(20):
                    await asyncio.gather(*(reader.done for reader in chosen))
                assert {(reader.size, reader.checksum) for reader in chosen} == {(TOTAL_BYTES, checksum())}
            finally:
                for reader in (first, *readers):
                    reader.close()


async def test_who_asks_on_and_does_not_read_is_not_answered_on(tmp_path: Path) -> None:
    """Else the answers that nobody takes would fill the memory."""
    async with FakeEngine.start() as engine, gateway(tmp_path, engine) as proxy:
        engine.script("/embeddings", Answer(body=b"x" * 60_000))
        client = await proxy.connect()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(1000):
            client.send("/v1/embeddings")
        hits = -1
        while engine.hits("/embeddings") != hits:
            hits = engine.hits("/embeddings")
            await asyncio.sleep(0.2)
        assert hits < 500
        [connection] = proxy.server.connections
        assert connection.transport is not None
        assert connection.transport.get_write_buffer_size() < 128 * 1024
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(1000):
            assert (await client.answer()).body == b"x" * 60_000
        client.close()


async def test_a_line_of_16_mb_is_never_held_whole() -> None:
    line = b'data: {"choices":[{"delta":{"content":"' + b"x" * 16_000_000 + b'"}}]}\n\n'
    pieces = tuple(line[at : at + 4096] for at in range(0, len(line), 4096))
    async with FakeEngine.start() as engine, real_proxy(engine) as proxy:
        assert (await proxy.post("/v1/chat/completions", chat(stream=True), {})).status == 200
        with proxy.flat(4 * 1024 * 1024):
            for events in ((line,), pieces):
                engine.script("/chat/completions", Answer(events=events))
                assert (await proxy.post("/v1/chat/completions", chat(stream=True), {})).body == line
