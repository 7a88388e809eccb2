"""A control plane on a thread of its own, for callers that know nothing of event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from tests.fakes.control_plane import ControlPlane

T = TypeVar("T")


@contextmanager
def served(
    database_url: str, furnish: Callable[[ControlPlane], Awaitable[T]]
) -> Iterator[tuple[ControlPlane, T]]:
    """The control plane, and what furnishing it gave. It ends with the block."""
    started: Future[tuple[ControlPlane, T, Callable[[], object]]] = Future()

    async def serve() -> None:
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        try:
            async with ControlPlane.start(database_url) as plane:
                found = await furnish(plane)
                started.set_result((plane, found, partial(loop.call_soon_threadsafe, ended.set)))
                await ended.wait()
        except BaseException as error:  # whoever waits for the start is told
            if not started.done():
                started.set_exception(error)
            raise

    with ThreadPoolExecutor(1) as threads:
        serving = threads.submit(asyncio.run, serve())
        plane, found, end = started.result()
        try:
            yield plane, found
        finally:
            end()
            serving.result()
