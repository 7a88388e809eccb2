"""The end of a replica's life: from SIGTERM to exit, within the shutdown grace.

signal          /readyz says 503, answers close their connections, new connections are still served
+ drain delay   the listener closes; requests under way go on
+ grace − 3 s   what is still under way is cut, counted and logged; usage is flushed
+ grace         the process is gone, come what may
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from fastllm_proxy.observe import Log

FLUSH_SECONDS = 3.0
EXIT_MARGIN_SECONDS = 0.25
"""Kept free at the very end, for what closing sockets and ending the interpreter take."""


class Plan(msgspec.Struct, frozen=True):
    """When each step comes, on the clock that `signalled_at` was read from."""

    listener_closes_at: float
    cut_at: float
    flushed_by: float


def plan(signalled_at: float, drain_delay: float, grace: float) -> Plan:
    """The steps of a drain that began at `signalled_at`. Of a short grace a third is for flushing."""
    cut_at = signalled_at + grace - min(FLUSH_SECONDS, grace / 3)
    return Plan(
        listener_closes_at=min(signalled_at + drain_delay, cut_at),
        cut_at=cut_at,
        flushed_by=signalled_at + grace - min(EXIT_MARGIN_SECONDS, grace / 10),
    )


class Serving(Protocol):
    """What is drained."""

    @property
    def inflight(self) -> int: ...

    def refuse_readiness(self) -> None:
        """From now `/readyz` says 503 and answers close their connections."""

    def stop_listening(self) -> None:
        """Closes the listening sockets."""

    async def finish(self, seconds: float) -> int:
        """Closes idle connections, waits so long for the busy ones; returns how many requests it then cut."""
        ...

    async def flush(self, deadline: float) -> int:
        """Sends what usage there is until `deadline`; returns how many events are left behind."""
        ...


async def drain(
    serving: Serving,
    steps: Plan,
    log: Log,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Runs the steps."""
    serving.refuse_readiness()
    log.info("draining", inflight=serving.inflight)
    if (left := steps.listener_closes_at - clock()) > 0:
        await sleep(left)
    serving.stop_listening()
    log.info("listener closed", inflight=serving.inflight)
    if cut := await serving.finish(max(0.0, steps.cut_at - clock())):
        log.warning("requests cut, the shutdown grace is over", count=cut)
    if left_behind := await serving.flush(steps.flushed_by):
        log.error("usage events lost, the control plane did not take them in time", count=left_behind)
