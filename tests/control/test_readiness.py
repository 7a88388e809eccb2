from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from fastllm_control.children import Process
from fastllm_control.readiness import NotReady, Readiness


@asynccontextmanager
async def serving(*answers: tuple[int, str]) -> AsyncIterator[str]:
    """A server that gives these answers, the last of them for ever; its URL."""
    left = list(answers)

    async def answer(_: web.Request) -> web.Response:
        status, text = left.pop(0) if len(left) > 1 else left[0]
        return web.Response(status=status, text=text)

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def child(tmp_path: Path, code: str = "import time; time.sleep(60)") -> AsyncIterator[Process]:
    one = Process("one", [sys.executable, "-c", code], dict(os.environ), tmp_path / "one.log", 1.0)
    one.start()
    try:
        yield one
    finally:
        one.kill()


async def test_ready_once_it_answers_200(tmp_path: Path) -> None:
    async with (
        child(tmp_path) as one,
        serving((503, "{}"), (500, "{}"), (200, "{}")) as url,
        Readiness() as ready,
    ):
        await asyncio.wait_for(ready.answers(one, url), 5)


async def test_a_proxy_serves_once_its_snapshot_is_new_enough(tmp_path: Path) -> None:
    versions = [(200, f'{{"snapshot_version": {version}}}') for version in (0, 6, 7)]
    async with child(tmp_path) as one, serving(*versions) as url, Readiness() as ready:
        await asyncio.wait_for(ready.serves(one, url, 7), 5)


async def test_a_process_that_ends_is_not_waited_for(tmp_path: Path) -> None:
    async with child(tmp_path, "print('no such port'); raise SystemExit(3)") as one, Readiness() as ready:
        with pytest.raises(NotReady, match="one ended while starting:\nno such port"):
            await asyncio.wait_for(ready.answers(one, "http://127.0.0.1:9/"), 10)


async def test_patience_has_an_end(tmp_path: Path) -> None:
    async with child(tmp_path) as one, serving((503, "{}")) as url, Readiness(patience_seconds=0.2) as ready:
        with pytest.raises(NotReady, match=r"does not answer at http://.* after 0\.2 s; see .*one\.log"):
            await ready.answers(one, url)
