"""Which headers pass, in both directions, and the head that goes to a backend. All as wire bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fastllm_proxy.errors import Refused

if TYPE_CHECKING:
    from fastllm_proxy.backends import Backend
    from fastllm_proxy.exchange import Exchange

RawHeaders = tuple[tuple[bytes, bytes], ...]

MAX_HOPS: Final = 4
"""Gateways in a row; one more is refused: somebody has pointed them at each other."""

HOP_HEADER: Final = b"x-fastllm-hop"

_HOP_BY_HOP: Final = frozenset(
    (b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"http2-settings")
)
_REQUEST_DROPPED: Final = _HOP_BY_HOP | frozenset(
    (
        b"accept-encoding",
        b"api-key",
        b"authorization",
        b"content-encoding",  # the body was inflated
        b"content-length",
        b"cookie",
        b"expect",
        b"forwarded",
        b"host",
        b"x-api-key",
        b"x-goog-api-key",
        b"x-real-ip",
        b"x-request-id",
        HOP_HEADER,
    )
)
_CREDENTIALS: Final = frozenset((b"api-key", b"authorization", b"x-api-key"))
"""Where a client's key may be. What is shorter than `_SECRET_BYTES` there is no key of ours."""
_SECRET_BYTES: Final = 16
_REQUEST_DROPPED_PREFIXES: Final = (b"proxy-", b"x-forwarded-")
_RESPONSE_DROPPED: Final = _HOP_BY_HOP | frozenset(
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
_PLAIN_CONNECTION: Final = frozenset((b"keep-alive", b"close"))
_SSE_OWN: Final = frozenset((b"cache-control", b"x-accel-buffering"))
_SSE_LINES: Final = b"cache-control: no-cache\r\nx-accel-buffering: no\r\n"


def count_hops(headers: RawHeaders) -> int:
    """How many gateways the request came through. Raises `Refused` 400 when that is too many."""
    hops = 0
    for name, value in headers:
        if len(name) == len(HOP_HEADER) and name.lower() == HOP_HEADER:
            text = value.strip()
            hops = max(hops, int(text) if text.isdigit() and len(text) < 4 else MAX_HOPS)
    if hops >= MAX_HOPS:
        raise Refused(400, "too_many_hops", "the request came through too many gateways in a row")
    return hops


def request_head(exchange: Exchange, backend: Backend, length: int) -> bytes:
    """The request line and headers for one attempt; `length` is the body's, in bytes."""
    path = exchange.endpoint.path
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
            passing_request_headers(exchange.headers, backend.own_headers),
            exchange.request_id.encode(),
            exchange.hops + 1,
            length,
        )
    )


def passing_request_headers(headers: RawHeaders, own: frozenset[bytes]) -> bytes:
    """The client's headers that go on, each line with its CRLF. `own` are set by the backend's
    configuration. A header that repeats the client's key, under whatever name, does not go on."""
    kept = []
    secrets = []
    listed: frozenset[bytes] = frozenset()
    for name, value in headers:
        lowered = name.lower()
        if lowered in _REQUEST_DROPPED:
            if lowered in _CREDENTIALS:
                secrets.append(value.rpartition(b" ")[2])  # without its scheme
            elif lowered == b"connection" and value.lower() not in _PLAIN_CONNECTION:
                listed |= connection_options(value)
        elif lowered not in own and not lowered.startswith(_REQUEST_DROPPED_PREFIXES):
            kept.append((lowered, name, value))
    if listed:
        kept = [line for line in kept if line[0] not in listed]
    lines = b"".join([b"%b: %b\r\n" % (name, value) for _, name, value in kept])
    for secret in secrets:
        if secret in lines and len(secret) >= _SECRET_BYTES:
            kept = [line for line in kept if secret not in line[2]]
            lines = b"".join([b"%b: %b\r\n" % (name, value) for _, name, value in kept])
    return lines


def passing_response_headers(headers: RawHeaders, *, event_stream: bool) -> bytes:
    """A backend's headers that go on (names are lower-cased already), each line with its CRLF."""
    listed: frozenset[bytes] = _SSE_OWN if event_stream else frozenset()
    kept = []
    for name, value in headers:
        if name in _RESPONSE_DROPPED:
            if name == b"connection" and value.lower() not in _PLAIN_CONNECTION:
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


def connection_options(value: bytes) -> frozenset[bytes]:
    """The header names that a `Connection` header declares to be for one hop only."""
    return frozenset(option.strip().lower() for option in value.split(b","))
