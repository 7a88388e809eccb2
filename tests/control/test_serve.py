"""`fastllm control` as a process: start, refusals to start, SIGTERM."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from fastllm_control.serve import listen, url_of
from tests.fakes.command import SECRETS, fastllm, started
from tests.fakes.ipv6 import speaks_ipv6


class Running:
    def __init__(self, process: asyncio.subprocess.Process, url: str, lines: list[str]) -> None:
        self.process = process
        self.url = url
        self.lines = lines

    async def end(self, name: signal.Signals) -> tuple[int, float, str]:
        """Send a signal; returns exit code, seconds until then, and the log."""
        sent = time.monotonic()
        self.process.send_signal(name)
        async with asyncio.timeout(30):
            rest = await self.process.stderr.read() if self.process.stderr else b""
            code = await self.process.wait()
        return code, time.monotonic() - sent, "".join(self.lines) + rest.decode()


@asynccontextmanager
async def running(url: str, *arguments: str) -> AsyncIterator[Running]:
    process = await started("control", "--port", "0", *arguments, url=url)
    assert process.stderr is not None
    lines: list[str] = []
    try:
        async with asyncio.timeout(30):
            while not (found := re.search(r"http://[0-9.:]+", "".join(lines))):
                lines.append((await process.stderr.readline()).decode())
                assert lines[-1], lines
        yield Running(process, found[0], lines)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def test_it_serves_until_it_is_told_to_end(database_url: str) -> None:
    async with running(database_url) as control, aiohttp.ClientSession() as http:
        async with http.get(f"{control.url}/healthz") as answer:
            assert answer.status == 200
            assert "server" not in answer.headers
        code, seconds, log = await control.end(signal.SIGTERM)
    assert code == 0
    assert seconds < 5
    assert "control plane ended" in log
    assert "Traceback" not in log


async def test_a_held_poll_is_answered_when_it_ends(database_url: str) -> None:
    async with running(database_url) as control, aiohttp.ClientSession() as http:
        token = {"authorization": f"Bearer {SECRETS['FASTLLM_PROXY_TOKEN']}"}
        async with http.get(f"{control.url}/snapshot?wait=30", headers=token) as answer:
            assert answer.status == 200
            known = {**token, "if-none-match": answer.headers["etag"]}
        poll = asyncio.create_task(http.get(f"{control.url}/snapshot?wait=30", headers=known).__aenter__())
        await asyncio.sleep(0.3)
        assert not poll.done()
        code, seconds, log = await control.end(signal.SIGINT)
        async with await poll as held:
            assert held.status == 304
    assert (code, seconds < 5) == (0, True)
    assert "Traceback" not in log


async def test_the_log_is_json_when_asked(database_url: str) -> None:
    async with running(database_url, "--log-format", "json") as control:
        code, _, log = await control.end(signal.SIGTERM)
    assert code == 0
    assert all(line.startswith("{") for line in log.splitlines())


async def test_a_port_that_is_taken(database_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = await fastllm("control", "--port", str(port), url=database_url)
    assert done.code == 1
    assert done.errors == (f"fastllm control: cannot listen on 127.0.0.1:{port}: Address already in use\n")


async def test_no_database(tmp_path: Path) -> None:
    done = await fastllm("control", "--port", "0", url="postgresql://user:canary@127.0.0.1:1/name")
    assert done.code == 1
    assert done.errors.startswith("fastllm control: cannot open the database at 127.0.0.1:1/name as user: ")
    assert done.errors.count("\n") == 1
    assert "canary" not in done.errors


async def test_settings_that_are_wrong_are_all_named() -> None:
    done = await fastllm("control", "--port", "x", "--trusted-proxies", "y")
    assert done.code == 2
    for name in ("--port", "FASTLLM_DATABASE_URL", "FASTLLM_ENCRYPTION_KEY", "FASTLLM_PROXY_TOKEN"):
        assert name in done.errors
    assert "Traceback" not in done.errors


@pytest.mark.parametrize("content", [None, "nonsense"])
async def test_a_certificate_that_is_none(database_url: str, tmp_path: Path, content: str | None) -> None:
    pem = tmp_path / "x.pem"
    if content is not None:
        pem.write_text(content)
    done = await fastllm(
        "control", "--port", "0", "--tls-cert", str(pem), "--tls-key", str(pem), url=database_url
    )
    assert done.code == 2
    assert "--tls-cert, --tls-key" in done.errors
    assert "Traceback" not in done.errors


def test_addresses() -> None:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        assert url_of(listener, tls=False) == f"http://127.0.0.1:{port}"
        # Clients are queued from now on.
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass
    if speaks_ipv6():
        with listen("::1", 0) as listener:
            assert url_of(listener, tls=True) == f"https://[::1]:{listener.getsockname()[1]}"
