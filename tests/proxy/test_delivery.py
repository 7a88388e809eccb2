"""What becomes of an answer."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from tests.fakes.engine import Answer, Fault
from tests.proxy.fleet import CHAT, ILL, fleet, hits
from tests.proxy.rig import CREDENTIAL


async def test_an_answer_that_is_short_of_its_end_was_not_sent_yet(tmp_path: Path) -> None:
    async with fleet(tmp_path, Answer(fault=Fault("close", at="end")), Answer()) as (proxy, engines):
        answer = await proxy.post()
        assert (answer.status, answer.whole) == (200, True)
        assert hits(engines) == [1, 1]


@pytest.mark.parametrize("status", [400, 404, 409, 413, 422])
async def test_a_clients_own_error_passes_as_it_is(tmp_path: Path, status: int) -> None:
    body = b'{"detail":"no"}'
    bad = Answer(status=status, body=body, headers=(("x-own", "1"),))
    async with fleet(tmp_path, bad, Answer()) as (proxy, engines):
        answer = await proxy.post()
        assert (answer.status, answer.body, answer.headers["x-own"]) == (status, body, "1")
        assert hits(engines) == [1, 0]
        assert (await proxy.events.get()).status == status
        assert proxy.backend(1).cooling_until == 0.0


async def test_only_rejections(tmp_path: Path) -> None:
    text = f'{{"error":{{"message":"Incorrect API key {CREDENTIAL} provided"}}}}'.encode()
    async with fleet(tmp_path, Answer(status=401, body=text), Answer(status=403)) as (proxy, _):
        answer = await proxy.post()
        assert (answer.status, answer.code) == (502, "upstream_rejected")
        assert b"Incorrect" not in answer.body
        logged = proxy.log_text()
        assert "Incorrect API key *** provided" in logged
        assert CREDENTIAL not in logged
        assert proxy.backend(1).cooling_until > time.monotonic() + 20


async def test_an_extra_header_that_a_provider_repeats_is_not_logged(tmp_path: Path) -> None:
    async with fleet(tmp_path, Answer(status=403, body=b"tenant key canary-4711 is unknown")) as (proxy, _):
        backend = proxy.backend(1)
        headers = (("x-tenant-key", "canary-4711"),)
        backend.provider = msgspec.structs.replace(backend.provider, extra_headers=headers)
        assert (await proxy.post()).code == "upstream_rejected"
        logged = proxy.log_text()
        assert "tenant key *** is unknown" in logged
        assert "canary" not in logged


async def test_a_busy_backend_cools_and_is_tried_when_all_are(tmp_path: Path) -> None:
    busy = Answer(status=503, headers=(("retry-after", "40"),))
    async with fleet(tmp_path, busy, Answer()) as (proxy, engines):
        assert (await proxy.post()).status == 200
        assert 30 < proxy.backend(1).cooling_until - time.monotonic() <= 40
        assert (await proxy.post()).status == 200
        assert hits(engines) == [1, 2]
        proxy.backend(2).cooling_until = time.monotonic() + 5
        engines[1].script(CHAT, Answer(status=429, body=b"mine"))
        answer = await proxy.post()
        assert hits(engines) == [2, 3]
        assert (answer.status, answer.body) == (429, b"mine")


async def test_ill_health_does_not_cool(tmp_path: Path) -> None:
    async with fleet(tmp_path, ILL, Answer()) as (proxy, engines):
        await proxy.post()
        await proxy.post()
        assert hits(engines) == [2, 2]
