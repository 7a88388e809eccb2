from __future__ import annotations

import asyncio

from fastllm_proxy.heads import ConnectionLimits
from fastllm_proxy.linger import Linger
from fastllm_proxy.timers import TimerWheel

LIMITS = ConnectionLimits(linger_seconds=0.08, linger_pause_seconds=0.02)


class Aborted(asyncio.Transport):
    """Counts how often it was aborted."""

    aborts = 0

    def abort(self) -> None:
        self.aborts += 1


async def test_a_silent_client_is_left_after_one_pause_and_a_talkative_one_after_all_of_them() -> None:
    timers = TimerWheel(asyncio.get_running_loop(), 0.005)
    silent, talkative, left = Aborted(), Aborted(), Aborted()
    Linger(silent, timers, LIMITS)
    talking = Linger(talkative, timers, LIMITS)
    Linger(left, timers, LIMITS).cancel()
    order: list[str] = []
    async with asyncio.timeout(2):
        while not talkative.aborts:
            talking.discarded += 1
            if silent.aborts and not order:
                order.append("silent first")
            await asyncio.sleep(0.002)
    assert order == ["silent first"]
    assert (silent.aborts, talkative.aborts, left.aborts) == (1, 1, 0)
    assert not any(timers._buckets.values())
