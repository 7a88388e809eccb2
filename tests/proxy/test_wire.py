"""Which headers pass."""

from __future__ import annotations

import pytest

from fastllm_proxy.wire import header, passing_response_headers, request_head
from tests.proxy.parts import exchange, live_backend


def test_the_head_of_an_attempt() -> None:
    headers = ((b"Host", b"gateway"), (b"X-Own", b"1"), (b"X-FastLLM-Hop", b"2"))
    made = exchange(headers=headers, query="?beta=true")
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


def test_looking_a_header_up() -> None:
    assert header(((b"a", b"1"), (b"a", b"2")), b"a") == b"1"
    assert header((), b"a") is None


def test_what_connection_names_does_not_pass_wherever_it_stands() -> None:
    headers = (
        (b"x-one", b"1"),
        (b"connection", b"close, X-One , x-two"),
        (b"x-two", b"2"),
        (b"x-three", b"3"),
    )
    assert passing_response_headers(headers, event_stream=False) == b"x-three: 3\r\n"
