"""Which headers pass, in both directions, and the head that goes to a backend. All as wire bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fastllm_proxy.client_headers import HOP_BY_HOP, PLAIN_CONNECTION, RawHeaders, connection_options

if TYPE_CHECKING:
    from fastllm_proxy.backends import Backend
    from fastllm_proxy.exchange import Exchange

_RESPONSE_DROPPED: Final = HOP_BY_HOP | frozenset(
    (
        b"alt-svc",
        b"content-length",
        b"location",
        b"server",
        b"set-cookie",
        b"set-cookie2",
        b"strict-transport-security",
        b"x-request-id",
    )
)
_RESPONSE_DROPPED_PREFIXES: Final = (b"access-control-", b"proxy-", b"x-ratelimit-")
_SSE_OWN: Final = frozenset((b"cache-control", b"x-accel-buffering"))
_SSE_LINES: Final = b"cache-control: no-cache\r\nx-accel-buffering: no\r\n"


def request_head(exchange: Exchange, backend: Backend, length: int) -> bytes:
    """The request line and headers for one attempt; `length` is the body's, in bytes."""
    path, headers = exchange.endpoint.path, exchange.headers
    line = backend.request_lines.get(path)
    if line is None:
        line = backend.request_lines[path] = b"POST %b%b" % (backend.base_path.encode(), path.encode())
    return (
        b"%b%b HTTP/1.1\r\n%b%baccept-encoding: identity\r\n"
        b"x-request-id: %b\r\nx-fastllm-hop: %d\r\ncontent-length: %d\r\n\r\n"
        % (
            line,
            exchange.query.encode("utf-8", "surrogateescape"),
            backend.credential_header,
            headers.passing(backend.own_headers),
            exchange.request_id.encode(),
            headers.hops + 1,
            length,
        )
    )


def passing_response_headers(headers: RawHeaders, *, event_stream: bool) -> bytes:
    """A backend's headers that go on (names are lower-cased already), each line with its CRLF."""
    listed: frozenset[bytes] = _SSE_OWN if event_stream else frozenset()
    kept = []
    for name, value in headers:
        if name in _RESPONSE_DROPPED:
            if name == b"connection" and value.lower() not in PLAIN_CONNECTION:
                listed |= connection_options(value)
        elif not name.startswith(_RESPONSE_DROPPED_PREFIXES):
            kept.append((name, value))
    if listed:
        kept = [line for line in kept if line[0] not in listed]
    lines = b"".join([b"%b: %b\r\n" % line for line in kept])
    return lines + _SSE_LINES if event_stream else lines


def header(headers: RawHeaders, wanted: bytes) -> bytes | None:
    """The first value of a header whose names are lower-cased already."""
    for name, value in headers:
        if name == wanted:
            return value
    return None
