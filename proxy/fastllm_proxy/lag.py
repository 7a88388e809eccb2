"""How late the event loop is: the one figure that says whether a worker is out of processor time."""

from __future__ import annotations

import asyncio
import time
from collections import deque

INTERVAL_SECONDS = 0.5
WINDOW_TURNS = 20
"""The figure is the worst of the last ten seconds: a scrape every 15 s or so should see a stall."""


class LoopLag:
    """Each turn sleeps and notes by how much it woke late. Timers may be coarse by a millisecond."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=WINDOW_TURNS)

    @property
    def seconds(self) -> float:
        return max(self._recent, default=0.0)

    async def turn(self) -> float:
        asked = time.monotonic()
        await asyncio.sleep(INTERVAL_SECONDS)
        self._recent.append(max(0.0, time.monotonic() - asked - INTERVAL_SECONDS))
        return 0.0
