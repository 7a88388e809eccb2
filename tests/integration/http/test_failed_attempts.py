"""Attempts that fail: kept connections, errors whose text does not come, backends that want a rest."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from fastllm_proxy.relay import RelayTimes
from tests.fakes.engine import Answer, FakeEngine, Fault
from tests.proxy.fleet import CHAT, DEAD, ILL, closed_port, fleet, hits
from tests.proxy.rig import chat


async def closes_within_a_second(engine: FakeEngine) -> None:
    async with asyncio.timeout(1):
        for connection in engine.connections:
            await connection.closed.wait()


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_dies_with_an_answer_begun_has_had_its_attempt(
    tmp_path: Path, stream: bool
) -> None:
    async with fleet(tmp_path, Answer(), Answer()) as (proxy, engines):
        assert (await proxy.post()).status == 200
        engines[0].script(CHAT, Answer(fault=Fault("reset", at="mid_head")))
        assert (await proxy.post(body=chat(stream=stream))).status == 200
        assert hits(engines) == [2, 1]
        assert (await proxy.events.get(2)).attempts == 2


async def test_a_request_that_engines_die_of_does_not_tour_them(tmp_path: Path) -> None:
    """Each closes a kept connection at once without a word, as if it had been idle, and is gone."""
    async with fleet(tmp_path, Answer(), Answer(), Answer()) as (proxy, engines):
        for chosen in (1, 2, 3):
            for number in (1, 2, 3):
                proxy.backend(number).cooling_until = 0.0 if number == chosen else time.monotonic() + 60
            assert (await proxy.post()).status == 200
        for number, engine in enumerate(engines, 1):
            proxy.backend(number).cooling_until = 0.0
            proxy.backend(number).pool._port = closed_port()
            engine.script(CHAT, DEAD)
        got = await proxy.post()
        assert (got.status, got.code) == (502, "upstream_unavailable")
        assert hits(engines) == [2, 2, 1]


async def test_a_kept_connection_is_replaced_once_and_no_more(tmp_path: Path) -> None:
    async with fleet(tmp_path, Answer(), ILL, Answer()) as (proxy, engines):
        assert (await proxy.post()).status == 200
        engines[0].script(CHAT, DEAD)
        assert (await proxy.post()).status == 500
        # Closed while idle, as far as can be told; the same on a fresh connection; then one more backend.
        assert hits(engines) == [3, 1, 0]
        assert (await proxy.events.get(2)).attempts == 2


@pytest.mark.parametrize(
    "fault", [Fault("stall", at="mid_body", split=True), Fault("reset", at="mid_body", split=True)]
)
@pytest.mark.parametrize("status", [500, 429, 401])
async def test_a_status_decides_though_its_text_does_not_come(
    tmp_path: Path, status: int, fault: Fault
) -> None:
    ill = Answer(status=status, body=b'{"error":"why"}', headers=(("retry-after", "9"),), fault=fault)
    async with fleet(tmp_path, ill, Answer(), times=RelayTimes(error=0.1)) as (proxy, engines):
        assert (await proxy.post()).status == 200
        await closes_within_a_second(engines[0])
        assert hits(engines) == [1, 1]
    async with fleet(tmp_path, ill, times=RelayTimes(error=0.1)) as (proxy, _):
        got = await proxy.post()
        expected = (502, "upstream_rejected") if status == 401 else (status, "upstream_error")
        assert (got.status, got.code) == expected
        assert got.headers.get("retry-after") == (None if status == 401 else "9")
        assert (await proxy.events.get()).status == got.status


@pytest.mark.parametrize(
    ("status", "headers", "seconds"),
    [
        (429, (("retry-after", "7"),), 7),
        (429, (), 5),
        (429, (("retry-after", "3600"),), 60),
        (503, (("retry-after", "2"),), 2),
        (529, (), 5),
    ],
)
async def test_a_busy_backend_rests_and_the_last_ones_own_words_pass(
    tmp_path: Path, status: int, headers: tuple[tuple[str, str], ...], seconds: int
) -> None:
    busy = Answer(status=status, headers=headers, body=b'{"error":{"message":"busy"}}')
    async with fleet(tmp_path, busy, busy) as (proxy, engines):
        asked_at = time.monotonic()
        got = await proxy.post()
        answered_at = time.monotonic()
        assert (got.status, got.body) == (status, b'{"error":{"message":"busy"}}')
        assert got.headers.get("retry-after") == dict(headers).get("retry-after")
        for number in (1, 2):
            assert asked_at <= proxy.backend(number).cooling_until - seconds <= answered_at
        assert hits(engines) == [1, 1]
        # All are resting: they are tried all the same.
        assert (await proxy.post()).status == status
        assert hits(engines) == [2, 2]
