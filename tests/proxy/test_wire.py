"""Which headers pass."""

from __future__ import annotations

import pytest

from fastllm_proxy.errors import Refused
from fastllm_proxy.wire import (
    connection_options,
    count_hops,
    header,
    passing_request_headers,
    passing_response_headers,
    request_head,
)
from tests.proxy.parts import exchange, live_backend

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
            passing_request_headers(((spelling, b"secret"), (b"X-Own", b"1")), frozenset()) == b"X-Own: 1\r\n"
        )


def test_the_rest_passes_in_its_order_and_spelling() -> None:
    headers = (
        (b"User-Agent", b"sdk/1"),
        (b"traceparent", b"00-1-2-01"),
        (b"OpenAI-Beta", b"a"),
        (b"OpenAI-Beta", b"b"),
        (b"Content-Type", b"application/json"),
    )
    assert passing_request_headers(headers, frozenset()) == (
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
        assert passing_request_headers(headers, frozenset()) == b"X-Own: 1\r\n"


def test_what_is_no_key_takes_no_header_along() -> None:
    headers = ((b"Authorization", b"Bearer 1"), (b"api-key", b""), (b"X-Own", b"1"))
    assert passing_request_headers(headers, frozenset()) == b"X-Own: 1\r\n"


def test_what_connection_names_does_not_pass_wherever_it_stands() -> None:
    headers = (
        (b"X-One", b"1"),
        (b"Connection", b"close, X-One , x-two"),
        (b"X-Two", b"2"),
        (b"X-Three", b"3"),
    )
    assert passing_request_headers(headers, frozenset()) == b"X-Three: 3\r\n"
    lowered = tuple((name.lower(), value) for name, value in headers)
    assert passing_response_headers(lowered, event_stream=False) == b"x-three: 3\r\n"
    assert passing_request_headers(((b"Connection", b"Keep-Alive"), (b"A", b"1")), frozenset()) == b"A: 1\r\n"


def test_what_the_backend_sets_itself_does_not_come_from_the_client() -> None:
    backend = live_backend(1, auth_header="X-Engine-Key", extra_headers=(("X-Tenant", "us"),))
    headers = ((b"x-engine-key", b"stolen"), (b"X-TENANT", b"them"), (b"X-Own", b"1"))
    assert passing_request_headers(headers, backend.own_headers) == b"X-Own: 1\r\n"


def test_the_head_of_an_attempt() -> None:
    made = exchange(headers=((b"Host", b"gateway"), (b"X-Own", b"1")), query="?beta=true")
    made.hops = 2
    head = request_head(made, live_backend(1), 12)
    assert head == (
        b"POST /v1/chat/completions?beta=true HTTP/1.1\r\nhost: 127.0.0.1:1\r\nX-Own: 1\r\n"
        b"accept-encoding: identity\r\nx-request-id: request-1\r\nx-fastllm-hop: 3\r\n"
        b"content-length: 12\r\n\r\n"
    )
    backend = live_backend(1)
    assert request_head(made, backend, 12) == request_head(made, backend, 12)


RESPONSE_DROPPED = [
    b"set-cookie",
    b"x-request-id",
    b"server",
    b"alt-svc",
    b"strict-transport-security",
    b"access-control-allow-origin",
    b"location",
    b"x-ratelimit-remaining-requests",
    b"transfer-encoding",
    b"keep-alive",
    b"content-length",
    b"proxy-authenticate",
    b"trailer",
    b"upgrade",
]


@pytest.mark.parametrize("name", RESPONSE_DROPPED)
def test_response_headers_that_do_not_pass(name: bytes) -> None:
    assert passing_response_headers(((name, b"x"), (b"x-own", b"1")), event_stream=False) == b"x-own: 1\r\n"


def test_response_headers_that_do() -> None:
    headers = (
        (b"content-type", b"application/json"),
        (b"retry-after", b"3"),
        (b"openai-processing-ms", b"5"),
        (b"anthropic-ratelimit-tokens-remaining", b"5"),
        (b"content-encoding", b"gzip"),
        (b"date", b"today"),
        (b"cache-control", b"private"),
    )
    expected = b"".join(b"%b: %b\r\n" % line for line in headers)
    assert passing_response_headers(headers, event_stream=False) == expected


def test_an_event_stream_is_kept_from_buffers() -> None:
    headers = (
        (b"content-type", b"text/event-stream"),
        (b"cache-control", b"max-age=5"),
        (b"x-accel-buffering", b"yes"),
    )
    assert passing_response_headers(headers, event_stream=True) == (
        b"content-type: text/event-stream\r\ncache-control: no-cache\r\nx-accel-buffering: no\r\n"
    )


@pytest.mark.parametrize(("value", "hops"), [(b"0", 0), (b"1", 1), (b" 3 ", 3)])
def test_hops_are_counted(value: bytes, hops: int) -> None:
    assert count_hops(((b"X-FastLLM-Hop", value),)) == hops
    assert count_hops(()) == 0


@pytest.mark.parametrize("value", [b"4", b"400", b"99999999999999", b"-1", b"x", b""])
def test_the_fifth_gateway_in_a_row_refuses(value: bytes) -> None:
    with pytest.raises(Refused) as caught:
        count_hops(((b"x-fastllm-hop", b"1"), (b"x-fastllm-hop", value)))
    assert (caught.value.status, caught.value.code) == (400, "too_many_hops")


def test_looking_a_header_up() -> None:
    assert header(((b"a", b"1"), (b"a", b"2")), b"a") == b"1"
    assert header((), b"a") is None


def test_connection_options() -> None:
    assert connection_options(b"close, X-A ,") == {b"close", b"x-a", b""}
