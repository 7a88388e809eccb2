"""Waiting for processes that have just been started to answer."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import aiohttp

from fastllm_control.children import Child

_POLL_SECONDS = 0.05
_TIMEOUT = aiohttp.ClientTimeout(total=5)


class NotReady(Exception):
    """A process ended, or never answered; the text holds its last words."""


class Readiness:
    """Asks over HTTP. One instance for as long as the block lasts."""

    def __init__(self, patience_seconds: float = 60.0) -> None:
        self._patience_seconds = patience_seconds
        self._client = aiohttp.ClientSession(timeout=_TIMEOUT)

    async def __aenter__(self) -> Readiness:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def answers(self, child: Child, url: str) -> None:
        """Return once `url` answers 200. Raises `NotReady` as soon as the child ends."""
        await self._until(child, url, lambda _: True)

    async def serves(self, child: Child, proxy_url: str, version: int) -> None:
        """Return once a proxy serves a snapshot of at least `version`."""
        await self._until(child, f"{proxy_url}/health", lambda body: body["snapshot_version"] >= version)

    async def _until(self, child: Child, url: str, enough: Any) -> None:
        deadline = time.monotonic() + self._patience_seconds
        while True:
            if child.pid is None:
                raise NotReady(f"{child.name} ended while starting:\n{child.log.last_words()}")
            try:
                async with self._client.get(url) as answer:
                    if answer.status == 200 and enough(await answer.json(content_type=None)):
                        return
            except (aiohttp.ClientError, TimeoutError):
                pass  # not listening yet
            if time.monotonic() > deadline:
                raise NotReady(
                    f"{child.name} does not answer at {url} after {self._patience_seconds:g} s;"
                    f" see {child.log.path}"
                )
            await asyncio.sleep(_POLL_SECONDS)
