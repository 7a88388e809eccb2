"""Supervision of what runs beside requests: named loops, each a function that makes one turn.

A turn that raises is logged and counted, and the loop goes on: a prober that dies silently looks like a fleet
of healthy backends. A loop is overdue when it has not completed a turn in three of its intervals and the time
that one turn may take.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from fastllm_proxy.observe import Log
from fastllm_shared.health import LoopView

Turn = Callable[[], Awaitable[float | None]]
"""Makes one turn; returns the pause before the next in seconds, `None` for the loop's interval."""

OVERDUE_INTERVALS = 3


class Loop:
    """One loop's state. `turn_seconds` bounds what one turn may take."""

    __slots__ = (
        "complaint",
        "failures",
        "interval_seconds",
        "last_turn_at",
        "name",
        "turn",
        "turn_seconds",
        "wanted",
    )

    def __init__(self, name: str, turn: Turn, interval_seconds: float, turn_seconds: float) -> None:
        self.name = name
        self.turn = turn
        self.interval_seconds = interval_seconds
        self.turn_seconds = turn_seconds
        self.last_turn_at: float | None = None  # Unix seconds
        self.failures = 0
        self.complaint: str | None = None
        self.wanted = asyncio.Event()

    async def pause(self, seconds: float) -> None:
        """Until the next turn is due or wanted at once."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        try:
            async with asyncio.timeout(seconds):
                await self.wanted.wait()
        except TimeoutError:
            return
        self.wanted.clear()


class Supervisor:
    """Runs loops from `start` to `stop`. `clock` gives Unix seconds."""

    def __init__(self, log: Log, clock: Callable[[], float] = time.time) -> None:
        self._log = log
        self._clock = clock
        self._loops: list[Loop] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._started_at = clock()

    def add(self, name: str, turn: Turn, *, interval_seconds: float, turn_seconds: float = 0.0) -> None:
        """Registers a loop; before `start`."""
        self._loops.append(Loop(name, turn, interval_seconds, turn_seconds))

    def start(self) -> None:
        self._started_at = self._clock()
        self._tasks = [asyncio.create_task(self._run(loop), name=loop.name) for loop in self._loops]

    async def stop(self) -> None:
        """Cancels every loop and waits for them. May be called more than once."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def soon(self, name: str) -> None:
        """Ends the named loop's pause."""
        for loop in self._loops:
            if loop.name == name:
                loop.wanted.set()

    def views(self) -> dict[str, LoopView]:
        return {
            loop.name: LoopView(
                last_turn_at=loop.last_turn_at,
                interval_seconds=loop.interval_seconds,
                failures=loop.failures,
            )
            for loop in self._loops
        }

    def overdue(self) -> tuple[str, ...]:
        """Names of the loops that have not turned when they should have."""
        now = self._clock()
        return tuple(loop.name for loop in self._loops if now > self._due_by(loop))

    def _due_by(self, loop: Loop) -> float:
        last = self._started_at if loop.last_turn_at is None else loop.last_turn_at
        return last + OVERDUE_INTERVALS * loop.interval_seconds + loop.turn_seconds

    async def _run(self, loop: Loop) -> None:
        while True:
            pause: float | None = None
            try:
                pause = await loop.turn()
            except Exception as error:  # noqa: BLE001 - a loop outlives whatever one turn met; it is logged, counted
                self._failed(loop, error)
            else:
                loop.last_turn_at = self._clock()
                loop.complaint = None
            await loop.pause(loop.interval_seconds if pause is None else pause)

    def _failed(self, loop: Loop, error: Exception) -> None:
        loop.failures += 1
        complaint = f"{type(error).__name__}: {error}"
        if complaint != loop.complaint:  # the same failure every second would bury the log; the count goes on
            loop.complaint = complaint
            self._log.error("loop failed", loop=loop.name, failures=loop.failures, exc_info=error)
