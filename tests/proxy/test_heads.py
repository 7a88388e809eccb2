from __future__ import annotations

import pytest

from fastllm_proxy.errors import Refused
from fastllm_proxy.heads import ConnectionLimits, Request, consider, too_large, version_of


def _request(*, old: bool = False, method: str = "POST") -> Request:
    return Request(method, "/", (), 0, True, old)


@pytest.mark.parametrize("protocol", [b"websocket", b"h2c, websocket", b"TLS/1.0", b""])
def test_a_change_of_protocol_ends_the_connection(protocol: bytes) -> None:
    request = _request()
    consider(request, {b"connection": b"keep-alive, Upgrade", b"upgrade": protocol})
    assert not request.keep_alive


def test_an_offer_of_http2_does_not() -> None:
    request = _request()
    consider(request, {b"connection": b"upgrade", b"upgrade": b"H2C"})
    assert (request.offers_http2, request.keep_alive) == (True, True)


@pytest.mark.parametrize(
    ("picked", "old"),
    [
        ({b"transfer-encoding": b"chunked"}, True),
        ({b"transfer-encoding": b"chunked", b"content-length": b"3"}, False),
        ({b"transfer-encoding": b"chunked, chunked"}, False),
        ({b"transfer-encoding": b"identity"}, False),
        ({b"transfer-encoding": b""}, False),
    ],
)
def test_a_body_has_one_framing(picked: dict[bytes, bytes], old: bool) -> None:
    with pytest.raises(Refused):
        consider(_request(old=old), picked)


@pytest.mark.parametrize("old", [False, True])
def test_only_who_knows_interim_answers_may_wait_for_one(old: bool) -> None:
    request = _request(old=old)
    consider(request, {b"expect": b"100-Continue"})
    assert request.expects_continue is not old


def test_a_chunked_body_is_not_complete() -> None:
    request = _request()
    consider(request, {b"transfer-encoding": b"CHUNKED"})
    assert (request.length, request.complete) == (None, False)


@pytest.mark.parametrize(
    ("line", "version"),
    [
        (b"GET / HTTP/1.1\r\n", b"HTTP/1.1"),
        (b"GET  /   HTTP/1.0\r\n", b"HTTP/1.0"),
        (b"GET / HTTP/1.0 \r\n", b"HTTP/1.0"),
        (b"GET / HTTP/1.2\r\n", None),
        (b"GET / http/1.1\r\n", None),
        (b"GET /a HTTP/1.1\r\n", None),
        (b"PUT / HTTP/1.1\r\n", None),
        (b"GET /\r\n", None),
        (b"GET / HTTP/1.1 HTTP/1.1\r\n", None),
    ],
)
def test_the_version_of_a_request_line(line: bytes, version: bytes | None) -> None:
    if version is not None:
        assert version_of(b"xx" + line, 2, "GET", b"/") == version
        return
    with pytest.raises(Refused):
        version_of(b"xx" + line, 2, "GET", b"/")


def test_what_is_too_large_says_what_may_be() -> None:
    refused = too_large(ConnectionLimits())
    assert refused.status == 431
    assert "32 KiB or 256 fields" in refused.message
