"""Dialling real sockets: what answers, what does not, and what must not even be asked."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastllm_control import dial
from fastllm_control.dial import AddressForbidden, CheckingResolver, Dialer, DialResult, Endpoint, read_models
from fastllm_shared.addresses import AddressPolicy
from tests.fakes.certificates import Authority
from tests.fakes.engine import Answer, FakeEngine, Fault

DIALER = Dialer(AddressPolicy())
QUICK = Dialer(AddressPolicy(), seconds=0.3)


async def test_an_engine_says_what_it_serves() -> None:
    async with FakeEngine.start(models=("a", "b/c")) as engine:
        result = await DIALER.dial(Endpoint(engine.url + "/"))
        assert (result.reachable, result.status, result.reason) == (True, 200, None)
        assert result.models is not None
        assert [model.id for model in result.models] == ["a", "b/c"]
        (request,) = engine.requests
        assert (request.method, request.target) == ("GET", "/v1/models")
        assert request.header("authorization") is None
        assert request.header("accept-encoding") == "identity"
        assert (request.header("user-agent") or "").endswith("(probe)")


@pytest.mark.parametrize(
    ("changed", "header", "value"),
    [
        ({}, "authorization", "Bearer sk-up"),
        ({"auth_scheme": "Token"}, "authorization", "Token sk-up"),
        ({"auth_header": "X-Api-Key", "auth_scheme": ""}, "x-api-key", "sk-up"),
        ({"extra_headers": {"X-Org": "42"}}, "x-org", "42"),
        ({"protocol": "anthropic"}, "anthropic-version", "2023-06-01"),
        ({"protocol": "anthropic", "extra_headers": {"Anthropic-Version": "x"}}, "anthropic-version", "x"),
    ],
)
async def test_the_credential_is_sent_as_the_provider_wants_it(
    changed: dict[str, object], header: str, value: str
) -> None:
    async with FakeEngine.start() as engine:
        endpoint = msgspec.convert({"api_base": engine.url, "credential": "sk-up", **changed}, Endpoint)
        assert (await DIALER.dial(endpoint)).reachable
        assert engine.requests[0].header(header) == value
        if changed.get("auth_header"):
            assert engine.requests[0].header("authorization") is None


@pytest.mark.parametrize(
    ("status", "reachable", "needs_credential"),
    [
        (204, True, False),
        (400, True, False),
        (401, True, True),
        (403, True, True),
        (404, True, False),
        (405, True, False),
        (429, True, False),
        (301, False, False),
        (307, False, False),
        (500, False, False),
        (503, False, False),
    ],
)
async def test_what_each_status_means(status: int, reachable: bool, needs_credential: bool) -> None:
    async with FakeEngine.start() as engine:
        engine.script("/models", Answer(status=status, headers=(("location", "/v1/models"),)))
        result = await DIALER.dial(Endpoint(engine.url))
        assert (result.reachable, result.status) == (reachable, status)
        assert result.needs_credential is needs_credential
        assert str(status) in (result.reason or "")
        assert len(engine.requests) == 1  # no redirect was followed


@pytest.mark.parametrize(
    "body", [b"<html>", b"[]", b"{}", b'{"data":{}}', b'{"data":null}', b"\xff", b"[" * 9999]
)
async def test_an_answer_that_is_no_list_is_an_answer(body: bytes) -> None:
    async with FakeEngine.start() as engine:
        engine.script("/models", Answer(body=body))
        result = await DIALER.dial(Endpoint(engine.url))
        assert (result.reachable, result.models) == (True, None)
        assert result.reason == "answers, but not with a list of models"


async def test_nothing_that_it_sends_is_repeated() -> None:
    async with FakeEngine.start() as engine:
        engine.script("/models", Answer(status=500, body=b"canary", headers=(("x-canary", "canary"),)))
        assert "canary" not in repr(await DIALER.dial(Endpoint(engine.url)))


@pytest.mark.parametrize(
    "answer",
    [
        Answer(delay_to_head=60),
        Answer(events=(b"{", b"}"), delay_to_body=60),
        Answer(body=b"x" * 1000, bytes_per_send=1, gap=0.05),
        Answer(fault=Fault("stall", "mid_head")),
        Answer(fault=Fault("stall", "request")),
    ],
)
async def test_the_whole_answer_has_one_deadline(answer: Answer) -> None:
    async with FakeEngine.start() as engine:
        engine.script("/models", answer)
        started = time.monotonic()
        result = await QUICK.dial(Endpoint(engine.url))
        assert time.monotonic() - started < 2
        assert result == DialResult(False, reason="no complete answer within 0.3 s")


@pytest.mark.parametrize(
    "answer",
    [
        Answer(fault=Fault("close", "request")),
        Answer(fault=Fault("reset", "request")),
        Answer(fault=Fault("close", "mid_head")),
        Answer(events=(b"{", b"}"), fault=Fault("close", "body")),
        Answer(events=(b"{", b"}"), fault=Fault("reset", "mid_body")),
        Answer(body=b"{}", declared_length=100, close=True),
    ],
)
async def test_an_answer_that_breaks_off_is_none(answer: Answer) -> None:
    async with FakeEngine.start() as engine:
        engine.script("/models", answer)
        result = await DIALER.dial(Endpoint(engine.url))
        assert result == DialResult(False, reason="it closes the connection before the answer is complete")


async def test_what_speaks_no_http() -> None:
    async with FakeEngine.start() as engine:
        engine.script("/models", Answer(raw=b"SSH-2.0-OpenSSH_9.6\r\n\r\n", close=True))
        assert (await DIALER.dial(Endpoint(engine.url))).reason == "what answers does not speak HTTP"


async def test_nobody_is_there() -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        port = unheard.getsockname()[1]
        assert await DIALER.dial(Endpoint(f"http://127.0.0.1:{port}/v1")) == DialResult(
            False, reason="the connection is refused"
        )


async def test_a_name_that_does_not_resolve() -> None:
    assert await DIALER.dial(Endpoint("http://no-such-host.invalid/v1")) == DialResult(
        False, reason="its name does not resolve"
    )


async def test_a_body_is_read_up_to_a_bound() -> None:
    async with FakeEngine.start() as engine:
        listed = {"data": [{"id": "x" * 1000} for _ in range(9)] + [{"id": str(n)} for n in range(1000)]}
        engine.script("/models", Answer(body=json.dumps(listed).encode()))
        whole = await DIALER.dial(Endpoint(engine.url))
        assert whole.models is not None
        assert len(whole.models) == 1001
        endless = Answer(events=tuple(b" " * 65536 for _ in range(200)))
        engine.script("/models", endless)
        result = await DIALER.dial(Endpoint(engine.url))
        assert (result.reachable, result.models) == (True, None)
        assert dial.MAX_BODY_BYTES < 200 * 65536


@pytest.mark.parametrize(
    ("api_base", "reason"),
    [
        ("http://169.254.169.254/latest", "the address is a link-local address"),
        ("http://0x7f.1:4001/v1", "the address is one of FastLLM's own ports"),
        ("ftp://gpu/v1", "the address scheme must be http or https"),
    ],
)
async def test_forbidden_addresses_are_not_dialled(api_base: str, reason: str) -> None:
    dialer = Dialer(AddressPolicy(own_ports=frozenset({4001})))
    assert await dialer.dial(Endpoint(api_base)) == DialResult(False, reason=reason, forbidden=True)


class Trusting(AddressPolicy, frozen=True):
    """Judges resolved addresses only, as if every URL's text were fine."""

    def check_url(self, text: str) -> str | None:
        return None


async def test_a_name_is_judged_by_what_it_resolves_to() -> None:
    async with FakeEngine.start() as engine:
        by_name = engine.url.replace("127.0.0.1", "localhost")
        refusing = Dialer(Trusting(allow_loopback=False))
        result = await refusing.dial(Endpoint(by_name))
        assert result == DialResult(
            False, reason="the name resolves to what is a loopback address", forbidden=True
        )
        assert engine.requests == []
        assert (await DIALER.dial(Endpoint(by_name))).reachable


async def test_the_resolver_hands_on_what_may_be_dialled_and_no_name() -> None:
    found = await CheckingResolver(AddressPolicy(), 80).resolve("localhost", 80)
    assert {entry["host"] for entry in found} <= {"127.0.0.1", "::1"}
    assert {entry["hostname"] for entry in found} == {"localhost"}
    with pytest.raises(AddressForbidden):
        await CheckingResolver(AddressPolicy(own_ports=frozenset({80})), 80).resolve("localhost", 80)


async def test_a_private_authority_is_trusted_where_it_is_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with FakeEngine.start(tls=authority.server_context("engine.test")) as engine:
        trusted = Endpoint(engine.url, ca=authority.pem, server_name="engine.test")
        assert (await DIALER.dial(trusted)).reachable
        for endpoint in (
            Endpoint(engine.url, server_name="engine.test"),
            Endpoint(engine.url, ca=Authority(tmp_path).pem, server_name="engine.test"),
            Endpoint(engine.url, ca=authority.pem, server_name="other.test"),
        ):
            result = await DIALER.dial(endpoint)
            assert not result.reachable
            assert (result.reason or "").startswith("its certificate is not trusted")
        plain = await DIALER.dial(Endpoint(engine.url.replace("https", "http")))
        assert not plain.reachable


async def test_https_where_plain_http_is_spoken() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        result = await DIALER.dial(Endpoint(f"https://127.0.0.1:{port}/v1"))
    assert result == DialResult(False, reason="TLS failed: is it plain http, or is `ca` no certificate?")


async def test_the_environment_names_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/")
    async with FakeEngine.start() as engine:
        assert (await DIALER.dial(Endpoint(engine.url))).reachable


async def test_many_are_dialled_at_once_and_leave_nothing_open() -> None:
    async with FakeEngine.start() as engine:
        results = await asyncio.gather(*(DIALER.dial(Endpoint(engine.url)) for _ in range(20)))
        assert all(result.reachable for result in results)
        for _ in range(200):
            if engine.open_connections == 0:
                return
            await asyncio.sleep(0.01)
        pytest.fail("a connection stays open")


def test_an_endpoint_does_not_show_its_credential() -> None:
    assert "hunter2" not in repr(
        Endpoint("http://gpu/v1", credential="hunter2", extra_headers={"x": "hunter2"})
    )


@pytest.mark.parametrize(
    ("data", "found"),
    [
        ([], []),
        ([{"id": "a", "max_model_len": 4096}], [("a", 4096)]),
        ([{"id": "a"}, {"id": "a", "max_model_len": 1}], [("a", None)]),
        ([{"id": 1}, {}, None, "b", {"id": ""}, {"id": "a\0"}, {"id": "c"}], [("c", None)]),
        ([{"id": "a", "max_model_len": value} for value in ("8", 0, -1, True, 1.5, 2**60)], [("a", None)]),
    ],
)
def test_odd_members_do_not_hide_the_rest(data: list[object], found: list[tuple[str, int | None]]) -> None:
    models = read_models(json.dumps({"object": "list", "data": data}).encode())
    assert models is not None
    assert [(model.id, model.max_model_len) for model in models] == found


@given(st.binary(max_size=60))
def test_any_body_is_read_without_raising(body: bytes) -> None:
    assert read_models(body) is None or body.strip().startswith(b"{")
