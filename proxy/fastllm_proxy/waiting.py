"""Waiting for a peer: wait after wait, each with its own limit, on one timer that is seldom touched."""

from __future__ import annotations

import asyncio
from math import inf
from typing import Any

from fastllm_proxy.timers import Timer, TimerWheel

EARLY_SECONDS = 1e-6
"""Within this of a deadline it counts as reached: sums of ticks are not exact."""


class Waiting(asyncio.BufferedProtocol):
    """The part of a connection that waits. It is a base and no part because every piece of every stream moves
    its deadline.

    `_waiter`   the future that is awaited, if any
    `_limit`    how long the present wait may be without anything coming, in seconds
    `_deadline` when whoever waits has waited long enough; `_timer` fires at or before it, at `_timer_due`
    """

    __slots__ = ("_deadline", "_limit", "_loop", "_timer", "_timer_due", "_timers", "_waiter")

    def __init__(self, loop: asyncio.AbstractEventLoop, timers: TimerWheel) -> None:
        self._loop = loop
        self._timers = timers
        self._waiter: asyncio.Future[Any] | None = None
        self._limit = 0.0
        self._deadline = 0.0
        self._timer: Timer | None = None
        self._timer_due = inf

    def _wait(self, seconds: float) -> asyncio.Future[Any]:
        """A future to await; whoever is waiting already is forgotten."""
        waiter: asyncio.Future[Any] = self._loop.create_future()
        self._waiter = waiter
        self._limit = seconds
        self._deadline = self._timers.next + seconds
        if self._deadline < self._timer_due:
            self._arm(seconds)
            self._deadline = self._timer_due
        return waiter

    def _arm(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._timers.after(seconds, self._expired)
        self._timer_due = self._timers.next + seconds

    def _stop(self) -> None:
        """Nobody will wait any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _expired(self) -> None:
        """Waits end without touching the timer, so it mostly finds a later deadline, or nobody waiting."""
        self._timer_due = inf
        if self._waiter is None or self._waiter.done():
            return
        left = self._limit if self._held_back() else self._deadline - self._timers.now
        if left > EARLY_SECONDS:
            self._arm(left)
        else:
            self._give_up()

    def _held_back(self) -> bool:
        """Whether silence is of our own making, and so no reason to give up."""
        raise NotImplementedError

    def _give_up(self) -> None:
        """Called when nothing has come for `_limit`."""
        raise NotImplementedError
