"""Random bytes, and requests with random damage: whatever comes back is answers in our shape, and what the
engine got is whole requests, framed by one length (`under_attack` checks that at the end)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastllm_proxy.heads import ConnectionLimits
from tests.integration.http.hostile import (
    BODY,
    CANARY,
    CHUNKED,
    Target,
    answers_in,
    chunks,
    request,
    under_attack,
)

LINGERING: Final = ConnectionLimits(linger_pause_seconds=0.1, head_seconds=2)
FRAGMENTS: Final = st.sampled_from(
    [
        b"POST /v1/chat/completions HTTP/1.1\r\n",
        b"GET /livez HTTP/1.1\r\n",
        b"HTTP/1.1",
        b"Host: a\r\n",
        b"Content-Length: 5\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Connection: close\r\n",
        b"Upgrade: h2c\r\nConnection: upgrade\r\n",
        b"Expect: 100-continue\r\n",
        b"\r\n",
        b"\n",
        b"\r",
        b"\x00",
        b" ",
        b":",
        b"0\r\n\r\n",
        b"5\r\nhello\r\n",
        b"ffffffffffffffff\r\n",
        b"\xff\xfe\x80",
        b"nonsense",
    ]
)
NOISE: Final = st.one_of(
    st.binary(max_size=200),
    st.lists(FRAGMENTS, max_size=12).map(b"".join),
    st.lists(st.one_of(FRAGMENTS, st.binary(max_size=8)), max_size=12).map(b"".join),
)
WHOLE: Final = (request(), request(CHUNKED, body=None) + chunks(BODY), request() * 2)


class Damage:
    """Where what is put into a request in the place of how much."""

    def __init__(self, at: int, length: int, put: bytes) -> None:
        self.at, self.length, self.put = at, length, put

    def __repr__(self) -> str:
        return f"Damage({self.at}, {self.length}, {self.put!r})"

    def to(self, data: bytes) -> bytes:
        at = self.at % len(data)
        return data[:at] + self.put + data[at + self.length :]


DAMAGE: Final = st.builds(
    Damage, st.integers(0, 10_000), st.integers(0, 20), st.one_of(st.binary(max_size=4), FRAGMENTS)
)


class Attack:
    """A gateway that outlives the examples of a test."""

    def __init__(self, runner: asyncio.Runner, target: Target) -> None:
        self._runner = runner
        self._target = target

    def send(self, data: bytes) -> None:
        self._runner.run(self._send(data))

    async def _send(self, data: bytes) -> None:
        async with await self._target.connect() as client:
            await client.send(data)
            # Time for an answer, before the half-close that ends what is not complete.
            for _ in range(6):
                await asyncio.sleep(0)
            client.half_close()
            received = await client.rest()
        assert CANARY not in received
        for answer in answers_in(received):
            assert answer.status in (100, 200, 400, 401, 404, 405, 408, 413, 415, 417, 431)
            if answer.status >= 400 and answer.body:
                assert sorted(json.loads(answer.body)["error"]) == ["code", "message", "param", "type"]
        await self._target.settled()

    def end(self) -> None:
        """Takes what the engine got for what it should have got: what is checked is how it came."""
        self._runner.run(asyncio.sleep(0.05))  # for one that was given up while it was under way
        self._target.expected = [received.body for received in self._target.engine.requests]
        for body in self._target.expected:  # a string that is no UTF-8 passes as it came
            assert json.loads(body.decode("utf-8", "replace"))["model"] == "fake-model"


@pytest.fixture
def attack(tmp_path: Path) -> Iterator[Attack]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        attacked = under_attack(tmp_path, connection=LINGERING)
        target = runner.run(attacked.__aenter__())
        attack = Attack(runner, target)
        yield attack
        attack.end()
        runner.run(attacked.__aexit__(None, None, None))


IN_ONE_GATEWAY: Final = [HealthCheck.function_scoped_fixture]


@settings(max_examples=300, deadline=None, suppress_health_check=IN_ONE_GATEWAY)
@given(data=NOISE)
def test_noise_is_answered_in_our_shape_or_not_at_all(attack: Attack, data: bytes) -> None:
    attack.send(data)


@settings(max_examples=300, deadline=None, suppress_health_check=IN_ONE_GATEWAY)
@given(whole=st.sampled_from(WHOLE), damages=st.lists(DAMAGE, min_size=1, max_size=3))
def test_a_damaged_request_is_served_whole_or_refused(
    attack: Attack, whole: bytes, damages: list[Damage]
) -> None:
    for damage in damages:
        whole = damage.to(whole)
    attack.send(whole)
