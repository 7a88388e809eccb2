from __future__ import annotations

import socket
import time
from collections.abc import AsyncIterator

import pytest

from fastllm_proxy.probe import MAX_BODY_BYTES, Verdict, endpoint_key, probe
from fastllm_shared.addresses import AddressPolicy
from tests.fakes.engine import Answer, FakeEngine, Fault
from tests.fakes.replica import LiveBackends, snapshot_of, with_provider

USER_AGENT = "fastllm-proxy/1.2.3 (probe)"


@pytest.fixture
async def live() -> AsyncIterator[LiveBackends]:
    backends = LiveBackends()
    yield backends
    await backends.close()


async def ask(live: LiveBackends, url: str, seconds: float = 5.0, **provider: object) -> Verdict:
    backend = live.adopt(with_provider(snapshot_of(url), **provider))["b1"]
    return await probe(backend, USER_AGENT, seconds)


async def test_what_is_asked(engine: FakeEngine, live: LiveBackends) -> None:
    engine.api_key = "sk-engine"
    assert await ask(live, engine.url + "/", credential="sk-engine", protocol="openai") == "passed"
    (request,) = engine.requests
    assert (request.method, request.target) == ("GET", "/v1/models")
    assert request.header("authorization") == "Bearer sk-engine"
    assert request.header("user-agent") == USER_AGENT
    assert request.header("host") == f"127.0.0.1:{engine.port}"
    assert request.header("anthropic-version") is None


async def test_the_anthropic_dialect_and_its_credential(engine: FakeEngine, live: LiveBackends) -> None:
    engine.api_key = "sk-engine"
    verdict = await ask(
        live,
        engine.url,
        protocol="anthropic",
        credential="sk-engine",
        auth_header="x-api-key",
        auth_scheme="",
        extra_headers=(("x-tenant", "a"),),
    )
    assert verdict == "passed"
    (request,) = engine.requests
    assert request.header("x-api-key") == "sk-engine"
    assert request.header("anthropic-version") is not None
    assert request.header("x-tenant") == "a"


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        (200, "passed"),
        (204, "passed"),
        (301, "passed"),
        (400, "passed"),
        (429, "passed"),
        (401, "credential"),
        (403, "credential"),
        (404, "absent"),
        (405, "absent"),
        (500, "status"),
        (503, "status"),
    ],
)
async def test_what_an_answer_means(
    engine: FakeEngine, live: LiveBackends, status: int, verdict: Verdict
) -> None:
    engine.script("/models", Answer(status=status))
    assert await ask(live, engine.url) == verdict


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (Answer(fault=Fault("stall", "request")), "timeout"),
        (Answer(fault=Fault("stall", "mid_head")), "timeout"),
        (Answer(fault=Fault("stall", "body")), "body_stalled"),
        (Answer(fault=Fault("stall", "end")), "body_stalled"),
        (Answer(events=(b"x",) * 20, gap=0.05), "body_stalled"),
        (Answer(delay_to_head=0.25, fault=Fault("stall", "body")), "body_stalled"),
    ],
)
async def test_head_and_body_share_one_deadline(
    engine: FakeEngine, live: LiveBackends, answer: Answer, verdict: Verdict
) -> None:
    engine.script("/models", answer)
    began = time.monotonic()
    assert await ask(live, engine.url, seconds=0.4) == verdict
    assert 0.35 < time.monotonic() - began < 0.9


@pytest.mark.parametrize(
    "answer",
    [
        Answer(fault=Fault("reset", "request")),
        Answer(fault=Fault("close", "mid_head")),
        Answer(fault=Fault("reset", "body")),
        Answer(raw=b"SSH-2.0-OpenSSH_9.6\r\n"),
    ],
)
async def test_a_broken_answer(engine: FakeEngine, live: LiveBackends, answer: Answer) -> None:
    engine.script("/models", answer)
    assert await ask(live, engine.url) == "reset"


async def test_nobody_there(live: LiveBackends) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        assert await ask(live, f"http://127.0.0.1:{taken.getsockname()[1]}/v1") == "refused"


async def test_an_address_that_may_not_be_dialled(engine: FakeEngine) -> None:
    strict = LiveBackends(AddressPolicy(allow_loopback=False))
    try:
        assert await ask(strict, engine.url) == "refused"
    finally:
        await strict.close()
    assert engine.connections == []


async def test_an_endless_body_is_alive_and_not_read_to_its_end(
    engine: FakeEngine, live: LiveBackends
) -> None:
    piece = b"x" * 65_536
    engine.script("/models", Answer(events=(piece,) * (2 * MAX_BODY_BYTES // len(piece))))
    assert await ask(live, engine.url) == "passed"


async def test_nothing_is_left_open(engine: FakeEngine, live: LiveBackends) -> None:
    engine.script("/models", Answer(), Answer(fault=Fault("stall", "body")))
    await ask(live, engine.url)
    await ask(live, engine.url, seconds=0.1)
    for connection in engine.connections:
        await connection.ended()
    assert engine.open_connections == 0
    assert live.current["b1"].pool.idle == 0


def test_what_makes_an_endpoint_distinct() -> None:
    (base,) = snapshot_of("http://a/v1").providers
    same = with_provider(snapshot_of("http://a/v1/"), id="other", name="other", auth_header="Authorization")
    assert endpoint_key(base) == endpoint_key(same.providers[0])
    for change in (
        {"api_base": "http://b/v1"},
        {"credential": "x"},
        {"protocol": "openai"},
        {"auth_scheme": ""},
        {"extra_headers": (("a", "b"),)},
        {"ca": "PEM"},
        {"server_name": "n"},
    ):
        other = with_provider(snapshot_of("http://a/v1"), **change).providers[0]
        assert endpoint_key(base) != endpoint_key(other)


def test_an_endpoints_secrets_are_not_shown() -> None:
    secret = with_provider(
        snapshot_of("http://a/v1"), credential="canary-1", extra_headers=(("x-key", "canary-2"),)
    )
    assert "canary" not in repr(endpoint_key(secret.providers[0]))
