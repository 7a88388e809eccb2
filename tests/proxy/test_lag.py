from __future__ import annotations

import asyncio
import time

from fastllm_proxy.lag import INTERVAL_SECONDS, LoopLag


async def test_a_blocked_loop_shows() -> None:
    lag = LoopLag()
    assert lag.seconds == 0
    turn = asyncio.create_task(lag.turn())
    await asyncio.sleep(0)
    time.sleep(INTERVAL_SECONDS + 0.2)  # noqa: ASYNC251 - the very thing that is measured
    assert await turn == 0
    assert 0.19 <= lag.seconds < 1.0
