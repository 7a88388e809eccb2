"""What a client's headers say, and which of them go on."""

from __future__ import annotations

import pytest

from fastllm_proxy.client_headers import MAX_HOPS, ClientHeaders, connection_options
from fastllm_shared.keys import digest_of
from tests.proxy.parts import live_backend

DROPPED = [
    b"Host",
    b"Authorization",
    b"X-Api-Key",
    b"api-key",
    b"X-Goog-Api-Key",
    b"Cookie",
    b"Proxy-Authorization",
    b"Proxy-Connection",
    b"Forwarded",
    b"X-Forwarded-For",
    b"X-Forwarded-Anything",
    b"X-Real-IP",
    b"Keep-Alive",
    b"TE",
    b"Trailer",
    b"Transfer-Encoding",
    b"Upgrade",
    b"Expect",
    b"Content-Length",
    b"Content-Encoding",
    b"Accept-Encoding",
    b"X-Request-Id",
    b"X-FastLLM-Hop",
]


@pytest.mark.parametrize("name", DROPPED)
def test_request_headers_that_do_not_pass(name: bytes) -> None:
    for spelling in (name, name.upper(), name.lower()):
        assert (
            ClientHeaders(((spelling, b"secret"), (b"X-Own", b"1"))).passing(frozenset()) == b"X-Own: 1\r\n"
        )


def test_the_rest_passes_in_its_order_and_spelling() -> None:
    headers = (
        (b"User-Agent", b"sdk/1"),
        (b"traceparent", b"00-1-2-01"),
        (b"OpenAI-Beta", b"a"),
        (b"OpenAI-Beta", b"b"),
        (b"Content-Type", b"application/json"),
    )
    assert ClientHeaders(headers).passing(frozenset()) == (
        b"User-Agent: sdk/1\r\ntraceparent: 00-1-2-01\r\nOpenAI-Beta: a\r\nOpenAI-Beta: b\r\n"
        b"Content-Type: application/json\r\n"
    )


@pytest.mark.parametrize(
    "credential",
    [(b"Authorization", b"Bearer sk-a-key-of-the-gateway"), (b"x-api-key", b"sk-a-key-of-the-gateway")],
)
def test_a_header_that_repeats_the_key_does_not_pass(credential: tuple[bytes, bytes]) -> None:
    repeated = (
        (b"X-Original-Authorization", b"Bearer sk-a-key-of-the-gateway"),
        (b"Referer", b"http://host/?key=sk-a-key-of-the-gateway&x=1"),
        (b"X-Own", b"1"),
    )
    for headers in ((credential, *repeated), (*repeated, credential)):
        assert ClientHeaders(headers).passing(frozenset()) == b"X-Own: 1\r\n"


def test_what_is_no_key_takes_no_header_along() -> None:
    headers = ((b"Authorization", b"Bearer 1"), (b"api-key", b""), (b"X-Own", b"1"))
    assert ClientHeaders(headers).passing(frozenset()) == b"X-Own: 1\r\n"


def test_what_connection_names_does_not_pass_wherever_it_stands() -> None:
    headers = (
        (b"X-One", b"1"),
        (b"Connection", b"close, X-One , x-two"),
        (b"X-Two", b"2"),
        (b"X-Three", b"3"),
    )
    assert ClientHeaders(headers).passing(frozenset()) == b"X-Three: 3\r\n"
    assert ClientHeaders(((b"Connection", b"Keep-Alive"), (b"A", b"1"))).passing(frozenset()) == b"A: 1\r\n"


def test_what_the_backend_sets_itself_does_not_come_from_the_client() -> None:
    backend = live_backend(1, auth_header="X-Engine-Key", extra_headers=(("X-Tenant", "us"),))
    headers = ((b"x-engine-key", b"stolen"), (b"X-TENANT", b"them"), (b"X-Own", b"1"))
    assert ClientHeaders(headers).passing(backend.own_headers) == b"X-Own: 1\r\n"


@pytest.mark.parametrize(("value", "hops"), [(b"0", 0), (b"1", 1), (b" 3 ", 3)])
def test_hops_are_counted(value: bytes, hops: int) -> None:
    assert ClientHeaders(((b"X-FastLLM-Hop", value),)).hops == hops
    assert ClientHeaders(()).hops == 0


@pytest.mark.parametrize("value", [b"4", b"400", b"99999999999999", b"-1", b"x", b""])
def test_what_is_no_small_number_of_gateways_is_too_many(value: bytes) -> None:
    assert ClientHeaders(((b"x-fastllm-hop", b"1"), (b"x-fastllm-hop", value))).hops >= MAX_HOPS


def test_backends_that_set_different_headers_are_told_apart() -> None:
    headers = ClientHeaders(((b"X-One", b"1"), (b"X-Two", b"2")))
    for _ in range(2):
        assert headers.passing(frozenset()) == b"X-One: 1\r\nX-Two: 2\r\n"
        assert headers.passing(frozenset((b"x-one",))) == b"X-Two: 2\r\n"
        assert headers.passing(frozenset((b"x-one", b"x-two"))) == b""


def test_a_credential_is_read_from_its_headers_only() -> None:
    def digests(name: bytes, value: bytes) -> tuple[bytes, ...]:
        return ClientHeaders(((name, value),)).digests

    assert digests(b"Authorization", b"Bearer  token ") == (digest_of("token"),)
    assert digests(b"X-API-KEY", b"token") == (digest_of("token"),)
    assert digests(b"accept-xxxxxx", b"token") == ()
    assert digests(b"Authorization", b"Digest x") == ()


def test_connection_options() -> None:
    assert connection_options(b"close, X-A ,") == {b"close", b"x-a", b""}
