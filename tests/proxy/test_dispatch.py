"""One attempt: how long it waits, and connections that were kept."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fastllm_proxy.dispatch import Patience
from tests.fakes.engine import Answer, Fault
from tests.proxy.fleet import CHAT, DEAD, fleet, hits
from tests.proxy.rig import chat


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("silent", [Answer(delay_to_head=30), Answer(fault=Fault("stall"))])
async def test_no_first_byte_in_time_is_not_sent_elsewhere(
    tmp_path: Path, stream: bool, silent: Answer
) -> None:
    patience = Patience(stream=0.1, whole=0.1)
    async with fleet(tmp_path, silent, Answer(), patience=patience) as (proxy, engines):
        answer = await proxy.post(body=chat(stream=stream))
        assert (answer.status, answer.code) == (504, "upstream_timeout")
        assert answer.headers["x-should-retry"] == "false"
        assert hits(engines) == [1, 0]
        async with asyncio.timeout(1):
            await engines[0].connections[0].closed.wait()
        assert (await proxy.events.get()).status == 504


async def test_a_backends_own_patience_counts(tmp_path: Path) -> None:
    changes = {"upstream_timeout_seconds": 0.1, "response_timeout_seconds": 20.0}
    slow = Answer(delay_to_head=0.4)
    async with fleet(tmp_path, slow, backends=changes) as (proxy, _):
        assert (await proxy.post(body=chat(stream=True))).status == 504
        assert (await proxy.post()).status == 200


async def test_a_connection_that_was_closed_while_idle_costs_no_attempt(tmp_path: Path) -> None:
    async with fleet(tmp_path, Answer(), Answer()) as (proxy, engines):
        assert (await proxy.post()).status == 200
        # The engine closes upon the next request, as if its time for idle connections had just run out.
        engines[0].script(CHAT, DEAD, Answer())
        assert (await proxy.post()).status == 200
        assert hits(engines) == [3, 0]
        assert (await proxy.events.get(2)).attempts == 1
        assert proxy.metrics.failovers == {}
        # On a fresh connection the same is a failure.
        engines[0].script(CHAT, DEAD)
        assert (await proxy.post()).status == 200
        assert (await proxy.events.get(3)).attempts == 2


async def test_a_backend_that_dies_of_a_request_on_a_kept_connection_has_had_its_attempt(
    tmp_path: Path,
) -> None:
    dies_late = Answer(raw=b"", delay_to_head=0.1, fault=Fault("reset", at="idle"))
    async with fleet(tmp_path, Answer(), Answer(), patience=Patience(stale=0.02)) as (proxy, engines):
        assert (await proxy.post()).status == 200
        engines[0].script(CHAT, dies_late)
        assert (await proxy.post()).status == 200
        assert hits(engines) == [2, 1]
        assert (await proxy.events.get(2)).attempts == 2


async def test_connections_are_used_again(tmp_path: Path) -> None:
    async with fleet(tmp_path, Answer()) as (proxy, engines):
        for number in range(6):
            await proxy.post(body=chat(stream=bool(number % 2)))
        assert len(engines[0].connections) == 1
        assert proxy.backend(1).latency > 0


async def test_an_engine_that_took_the_request_and_closed_in_order_has_had_its_attempt(
    tmp_path: Path,
) -> None:
    closes = Answer(raw=b"", fault=Fault("close", at="idle"))
    async with fleet(tmp_path, Answer(), Answer()) as (proxy, engines):
        assert (await proxy.post()).status == 200
        engines[0].script(CHAT, closes)
        assert (await proxy.post()).status == 200
        assert hits(engines) == [2, 1]
        assert (await proxy.events.get(2)).attempts == 2


async def test_an_engine_that_resets_all_it_is_sent_is_hit_a_fifth_more_at_most(tmp_path: Path) -> None:
    calls = 200
    # Long enough for all of them to be under way at once on a busy machine too.
    async with fleet(tmp_path, Answer(delay_to_head=0.5)) as (proxy, engines):
        answers = await asyncio.gather(*(proxy.post() for _ in range(calls)))
        assert all(answer.status == 200 for answer in answers)
        kept = proxy.backend(1).pool.idle
        assert kept > calls // 2
        engines[0].script(CHAT, DEAD)
        answers = await asyncio.gather(*(proxy.post() for _ in range(calls)))
        assert {answer.status for answer in answers} == {502}
        assert engines[0].hits(CHAT) - calls <= calls * 1.2
