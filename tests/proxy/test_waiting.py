from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from fastllm_proxy.timers import TimerWheel
from fastllm_proxy.waiting import Waiting

TICK = 0.005


class Patient(Waiting):
    """Notes when it gives up; `busy` says that silence is of its own making."""

    def __init__(self, timers: TimerWheel) -> None:
        super().__init__(asyncio.get_running_loop(), timers)
        self.gave_up = asyncio.Event()
        self.busy = False

    def _held_back(self) -> bool:
        return self.busy

    def _give_up(self) -> None:
        self.gave_up.set()


@pytest.fixture
async def timers() -> AsyncIterator[TimerWheel]:
    wheel = TimerWheel(asyncio.get_running_loop(), TICK)
    yield wheel
    wheel.close()


async def test_a_wait_ends_when_its_limit_has_passed(timers: TimerWheel) -> None:
    patient = Patient(timers)
    waiter = patient._wait(0.03)
    started = asyncio.get_running_loop().time()
    await asyncio.wait_for(patient.gave_up.wait(), 5)
    assert asyncio.get_running_loop().time() - started >= 0.03 - TICK
    assert not waiter.done()


async def test_a_shorter_wait_after_a_longer_one_has_its_own_limit(timers: TimerWheel) -> None:
    patient = Patient(timers)
    patient._wait(600).set_result(None)
    patient._wait(0.03)
    await asyncio.wait_for(patient.gave_up.wait(), 5)


async def test_waits_that_follow_each_other_share_a_timer(timers: TimerWheel) -> None:
    patient = Patient(timers)
    patient._wait(60).set_result(None)
    timer = patient._timer
    for _ in range(5):
        patient._wait(60).set_result(None)
    assert patient._timer is timer
    patient._stop()


async def test_nobody_gives_up_who_is_not_waiting_or_holds_back_himself(timers: TimerWheel) -> None:
    idle, busy = Patient(timers), Patient(timers)
    idle._wait(0.01).set_result(None)
    busy.busy = True
    busy._wait(0.01)
    await asyncio.sleep(0.1)
    assert not idle.gave_up.is_set()
    assert not busy.gave_up.is_set()
    busy.busy = False
    await asyncio.wait_for(busy.gave_up.wait(), 5)
