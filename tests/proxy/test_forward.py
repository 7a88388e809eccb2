"""Attempts and failover, against engines that fail in every way, on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import cast, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastllm_proxy.backends import Backend
from fastllm_proxy.balancer import Balancer
from fastllm_proxy.dispatch import Dispatcher, Patience
from fastllm_proxy.downstream import Downstream
from fastllm_proxy.errors import Refused
from fastllm_proxy.exchange import Exchange
from fastllm_proxy.forward import Forwarder
from fastllm_proxy.gate import Gates
from fastllm_proxy.metrics import Metrics
from fastllm_proxy.outcomes import Answer as Error
from fastllm_proxy.outcomes import Failure, Kind
from fastllm_proxy.retries import RetryBudget
from tests.fakes.engine import Answer, FakeEngine, Fault
from tests.proxy.fleet import CHAT, DEAD, ILL, closed_port, fleet, hits
from tests.proxy.parts import exchange, live_backend, target
from tests.proxy.rig import MODEL, chat, gateway


@pytest.mark.parametrize(
    "bad",
    [
        ILL,
        Answer(status=503),
        Answer(status=429),
        Answer(status=529),
        Answer(status=401),
        Answer(status=402),
        Answer(status=403),
        Answer(status=404, body=b'{"error":{"message":"The model `x` does not exist."}}'),
        Answer(status=302, headers=(("location", "http://127.0.0.1:1/"),)),
        DEAD,
        Answer(fault=Fault("close")),
        Answer(fault=Fault("close", at="mid_head")),
        Answer(fault=Fault("close", at="body")),
        Answer(raw=b"nonsense\r\n\r\n"),
        Answer(status=500, body=b"x" * (1024 * 1024 + 1)),
    ],
    ids=lambda answer: (
        f"{answer.status}-{answer.fault and answer.fault.at}-{(answer.raw or b'')[:3].decode()}"
    ),
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_failed_attempt_moves_on_before_the_first_byte(
    tmp_path: Path, bad: Answer, stream: bool
) -> None:
    async with fleet(tmp_path, bad, Answer()) as (proxy, engines):
        answer = await proxy.post(body=chat(stream=stream))
        assert answer.status == 200
        assert answer.whole
        assert hits(engines) == [1, 1]
        event = await proxy.events.get()
        assert (event.status, event.attempts, event.provider) == (200, 2, "engine-2")
        assert proxy.inflight == 0
        assert proxy.metrics.failovers == {MODEL: 1}
        assert "attempt failed" in proxy.log_text()


async def test_an_engine_that_is_not_there(tmp_path: Path) -> None:
    async with fleet(tmp_path, Answer(), Answer()) as (proxy, engines):
        proxy.backend(1).pool._port = closed_port()
        assert (await proxy.post()).status == 200
        assert hits(engines) == [0, 1]


async def test_the_last_answer_decides(tmp_path: Path) -> None:
    busy = Answer(status=429, body=b'{"error":{"message":"slow"}}', headers=(("retry-after", "7"),))
    async with fleet(tmp_path, ILL, busy, DEAD, Answer(status=401)) as (proxy, engines):
        answer = await proxy.post()
        assert (answer.status, answer.body) == (429, b'{"error":{"message":"slow"}}')
        assert answer.headers["retry-after"] == "7"
        assert hits(engines) == [1, 1, 1, 1]
        event = await proxy.events.get()
        assert (event.status, event.attempts, event.refusal) == (429, 4, None)


async def test_only_unreachable_ones(tmp_path: Path) -> None:
    async with fleet(tmp_path, Answer(), Answer()) as (proxy, engines):
        for number in (1, 2):
            proxy.backend(number).pool._port = closed_port()
        answer = await proxy.post()
        assert (answer.status, answer.code) == (502, "upstream_unavailable")
        assert answer.json()["error"]["message"] == f"no healthy backend for {MODEL}"
        assert hits(engines) == [0, 0]
        event = await proxy.events.get()
        assert (event.status, event.attempts, event.prompt_tokens) == (502, 2, None)


async def test_what_was_reset_after_it_was_sent_goes_to_one_more_at_most(tmp_path: Path) -> None:
    async with fleet(tmp_path, DEAD, DEAD, Answer()) as (proxy, engines):
        assert (await proxy.post()).code == "upstream_unavailable"
        assert hits(engines) == [1, 1, 0]


async def test_never_more_than_four_attempts(tmp_path: Path) -> None:
    async with fleet(tmp_path, *[ILL] * 6) as (proxy, engines):
        assert (await proxy.post()).status == 500
        assert hits(engines) == [1, 1, 1, 1, 0, 0]


async def test_at_most_two_further_backends_of_one_target(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(FakeEngine.start()) for _ in range(5)]
        for engine in engines:
            engine.script(CHAT, ILL)
        proxy = await stack.enter_async_context(gateway(tmp_path, *engines))
        assert (await proxy.post()).status == 500
        assert sorted(hits(engines)) == [0, 0, 1, 1, 1]
        assert proxy.inflight == 0


async def test_a_frontend_model_may_ask_for_one_retry_after_a_timeout(tmp_path: Path) -> None:
    patience = Patience(whole=0.1)
    silent = Answer(fault=Fault("stall"))
    patient = {"retry_on_timeout": True}
    async with fleet(tmp_path, silent, Answer(), frontend=patient, patience=patience) as (proxy, _):
        assert (await proxy.post()).status == 200
    async with fleet(tmp_path, silent, silent, Answer(), frontend=patient, patience=patience) as (
        proxy,
        engines,
    ):
        assert (await proxy.post()).code == "upstream_timeout"
        assert hits(engines) == [1, 1, 0]


async def test_retries_are_rationed(tmp_path: Path) -> None:
    """Of 12 requests that fail at once, 3 may be tried elsewhere at a time: the others are told at once."""
    async with fleet(tmp_path, ILL, Answer(delay_to_head=0.5)) as (proxy, engines):
        answers = await asyncio.gather(*(proxy.post() for _ in range(12)))
        assert sorted(answer.status for answer in answers) == [200] * 3 + [500] * 9
        assert hits(engines) == [12, 3]
        assert (await proxy.post()).status == 200


async def test_nothing_to_try(tmp_path: Path) -> None:
    async with (
        FakeEngine.start() as engine,
        gateway(tmp_path, engine, backends={"state": "draining"}) as proxy,
    ):
        answer = await proxy.post()
        assert (answer.status, answer.code) == (503, "no_backend")
        event = await proxy.events.get()
        assert (event.status, event.refusal, event.attempts) == (503, "no_backend", 0)
        assert engine.requests == []


class Scripted(Dispatcher):
    """Attempts that come out as they are told; after the last of them all succeed."""

    def __init__(self, *kinds: Kind) -> None:
        self.left = list(kinds)
        self.tried: list[str] = []
        self.seen: list[Kind] = []

    async def dispatch(self, exchange: Exchange, backend: Backend) -> Failure | None:
        exchange.attempts += 1
        self.tried.append(backend.id)
        if not self.left:
            exchange.status = 200
            return None
        self.seen.append(kind := self.left.pop(0))
        has_answer = kind in ("answered", "busy")
        return Failure(kind, "", Error(500, b"", b"") if has_answer else None)


class Sent(Downstream):
    """A client that gets one answer."""

    def __init__(self) -> None:
        self.statuses: list[int] = []

    def send_whole(self, status: int, headers: bytes, body: bytes | bytearray | memoryview) -> None:
        self.statuses.append(status)


class Scene:
    """A forwarder without sockets or time; `pauses` are those it made, with jitter at its middle."""

    def __init__(self, *kinds: Kind, max_retries: int = 2) -> None:
        self.dispatcher = Scripted(*kinds)
        self.pauses: list[float] = []
        self.forwarder = Forwarder(
            max_retries=max_retries,
            balancer=Balancer(),
            gates=Gates(),
            dispatcher=self.dispatcher,
            retries=RetryBudget(),
            metrics=Metrics(),
            sleep=self._sleep,
            noise=lambda: 0.5,
        )

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)

    async def forward(self, made: Exchange) -> int:
        """The status that the client got."""
        made.downstream = Sent()
        try:
            await self.forwarder.forward(made)
        except Refused as refused:
            return refused.status
        return made.status


@given(
    st.lists(st.sampled_from(get_args(Kind)), max_size=8),
    st.lists(st.lists(st.integers(1, 7), min_size=1, max_size=5, unique=True), min_size=1, max_size=4),
    st.integers(0, 3),
    st.booleans(),
)
def test_whatever_fails_and_however_the_chain_is_built(
    kinds: list[Kind], shape: list[list[int]], max_retries: int, retry_on_timeout: bool
) -> None:
    backends = {number: live_backend(number) for number in range(1, 8)}
    chain = [target(f"t{at}", *(backends[n] for n in listed)) for at, listed in enumerate(shape)]
    scene = Scene(*kinds, max_retries=max_retries)
    made = exchange(*chain, retry_on_timeout=retry_on_timeout)
    status = asyncio.run(scene.forward(made))
    tried, seen = scene.dispatcher.tried, scene.dispatcher.seen
    assert 1 <= len(tried) <= 4
    assert len(tried) == len(set(tried)) == made.attempts == len(scene.pauses) + 1
    first = [f"backend-{n}" for n in shape[0]]
    assert sum(name in first for name in tried[: 1 + max_retries]) <= 1 + max_retries
    begun = [at for at, kind in enumerate(seen) if kind in ("broken", "timeout")]
    if begun:
        after = tried[begun[0] + 1 :]
        reached = [
            name
            for name, kind in zip(after, [*seen[begun[0] + 1 :], "well"], strict=False)
            if kind not in ("refused", "unreachable", "unsent")
        ]
        assert len(reached) <= 1
        if not retry_on_timeout:
            assert "timeout" not in seen[: len(tried) - 1]
    succeeded = len(seen) < len(tried)
    assert (status == 200) == succeeded
    assert len(cast(Sent, made.downstream).statuses) <= 1


def test_pauses_between_attempts_grow_and_a_busy_one_doubles_them() -> None:
    for kinds, pauses in (
        (("answered", "refused", "answered"), [0.025, 0.05, 0.1]),
        (("busy", "busy", "busy"), [0.05, 0.1, 0.2]),
        (("answered", "busy", "rejected"), [0.025, 0.1, 0.1]),
    ):
        scene = Scene(*cast(tuple[Kind, ...], kinds))
        chain = [target(f"t{n}", live_backend(n)) for n in range(1, 6)]
        assert asyncio.run(scene.forward(exchange(*chain))) == 200
        assert scene.pauses == pauses
