"""Coarse timeouts for a hot path: one clock tick serves every timer that is due at it.

A request sets two or three timeouts that almost never fire. A loop timer for each would cost a heap push, a
handle and a cancelled entry that lingers for minutes; here setting and cancelling are one dictionary
operation each, and the loop is woken by one callback per tick, only while timers exist.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Protocol


class Handle(Protocol):
    def cancel(self) -> None: ...


class Loop(Protocol):
    """What of an event loop is used here."""

    def time(self) -> float: ...

    def call_at(self, when: float, callback: Callable[[], None]) -> Handle: ...

    def call_soon(self, callback: Callable[[], None]) -> Handle: ...


class Timer:
    """A pending callback. `cancel` may be called at any time, any number of times."""

    __slots__ = ("_bucket", "_callback")

    def __init__(self, callback: Callable[[], None], bucket: dict[Timer, None]) -> None:
        self._callback: Callable[[], None] | None = callback
        self._bucket = bucket

    def cancel(self) -> None:
        self._callback = None
        self._bucket.pop(self, None)

    @property
    def pending(self) -> bool:
        """Whether it has neither fired nor been cancelled."""
        return self._callback is not None

    def _fire(self) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


class TimerWheel:
    """Timers of one event loop: late by at most two ticks, and early only by as much as the loop was held up
    when they were set.

    State: `_buckets` maps a tick number to its timers; `_tick` is the last tick that was served, and
    `_handle` the loop's call for the next one, `None` while there is nothing to wait for.
    """

    __slots__ = ("_buckets", "_handle", "_loop", "_seconds", "_tick", "next", "now")

    def __init__(self, loop: Loop, tick_seconds: float = 0.1) -> None:
        self._loop = loop
        self._seconds = tick_seconds
        self._buckets: dict[int, dict[Timer, None]] = {}
        self._handle: Handle | None = None
        self._tick = 0
        # Seconds on the loop's clock at the beginning and at the end of the present tick. They move only
        # while a timer is pending, and are plain attributes since every piece of a stream reads them.
        self.now = 0.0
        self.next = 0.0

    def after(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Calls `callback` once from the event loop, `seconds` to `seconds` + two ticks from now."""
        if self._handle is None:
            self._start()
        # The present tick began up to one tick ago, hence the one more.
        due = self._tick + ceil(seconds / self._seconds) + 1
        bucket = self._buckets.get(due)
        if bucket is None:
            bucket = self._buckets[due] = {}
        timer = Timer(callback, bucket)
        bucket[timer] = None
        return timer

    def close(self) -> None:
        """Drops every timer without calling it."""
        for bucket in self._buckets.values():
            for timer in tuple(bucket):
                timer.cancel()
        self._buckets.clear()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _start(self) -> None:
        self._reach(int(self._loop.time() / self._seconds))
        self._schedule()

    def _reach(self, tick: int) -> None:
        self._tick = tick
        self.now = tick * self._seconds
        self.next = self.now + self._seconds

    def _schedule(self) -> None:
        self._handle = self._loop.call_at(self.next, self._advance)

    def _advance(self) -> None:
        """Serves every tick that has passed; several at once after the loop was held up."""
        reached = max(self._tick + 1, int(self._loop.time() / self._seconds))
        for tick in range(self._tick + 1, reached + 1):
            for timer in self._buckets.pop(tick, ()):
                # Through the loop, so that one that raises takes no other with it.
                self._loop.call_soon(timer._fire)
        self._reach(reached)
        # Buckets emptied by cancelling stay until their tick: one of them must not keep the loop awake.
        if any(self._buckets.values()):
            self._schedule()
        else:
            self._buckets.clear()
            self._handle = None
