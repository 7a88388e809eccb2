"""Clients that do not read: they hold back their engines, and cost the gateway next to nothing."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from tests.fakes.control import FakeControl
from tests.fakes.proxy import ProxyProcess, run_proxy
from tests.fakes.replica import KEY, snapshot_of
from tests.integration.http.crowd import PIECES, TOTAL_BYTES, Framing, PouringEngine, Reader, checksum

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
