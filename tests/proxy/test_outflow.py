from __future__ import annotations

import asyncio

import pytest

from fastllm_proxy.outflow import Outflow


class Unwritten(asyncio.Transport):
    """A transport that nobody writes to."""


async def test_whoever_waits_goes_on_when_the_client_takes_more() -> None:
    flow = Outflow()
    flow.transport = Unwritten()
    told: list[str] = []
    flow.on_pause = lambda: told.append("pause")
    flow.on_resume = lambda: told.append("resume")
    await flow.drained()
    flow.pause_writing()
    assert flow.writing_paused
    waiting = [asyncio.create_task(flow.drained()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    assert not waiting[1].done()
    flow.resume_writing()
    await asyncio.gather(*waiting[1:])
    assert told == ["pause", "resume"]
    assert not flow.writing_paused


async def test_nobody_waits_for_a_client_that_has_gone() -> None:
    with pytest.raises(ConnectionError):
        await Outflow().drained()
