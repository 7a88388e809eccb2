"""What a client may send as the head of a request, what it says, and how long its connection waits for
what."""

from __future__ import annotations

from typing import Final

import msgspec

from fastllm_proxy import refusals
from fastllm_proxy.errors import Refused

READ_BUFFER_BYTES: Final = 128 * 1024
"""What one read brings at most: a body of 64 KiB comes in one piece with its head."""

PIPELINED_REQUESTS: Final = 32
"""Requests that a connection may have sent ahead of their answers before reading from it pauses."""


PICKED: Final = frozenset(
    (
        b"connection",
        b"content-encoding",
        b"content-length",
        b"expect",
        b"host",
        b"transfer-encoding",
        b"upgrade",
        b"x-request-id",
    )
)
"""Headers that the edge itself has to know of each request."""

_KEEP_ALIVE: Final = b"keep-alive"
_VERSIONS: Final = (b"HTTP/1.0", b"HTTP/1.1")


class ConnectionLimits(msgspec.Struct, frozen=True):
    """What a client may send as a head, and how long a connection waits for what. Seconds and bytes.

    `keepalive_seconds` outlasts the idle timeouts of common load balancers (600 s at most), so that they
    close first and no request meets a closing connection. `linger_…`: how long a client may go on sending
    after the last answer, in all and without a byte.
    """

    head_bytes: int = 32 * 1024
    head_fields: int = 256
    head_seconds: float = 10.0
    keepalive_seconds: float = 620.0
    discard_seconds: float = 5.0
    linger_seconds: float = 30.0
    linger_pause_seconds: float = 3.0


class Request(msgspec.Struct, eq=False):
    """One request, and what has come of its body.

    `headers` have lower-cased names, and values without surrounding white space; the body's length is not
    among them, so that those of a client's next request are often the same. `length` is the body's in bytes,
    `None` if it is chunked. `received` counts what has come of it, `unread` what is in `pieces`; `failure` is
    why the rest will never come. `old` is HTTP/1.0. A header that is repeated stands joined by commas in
    `encoding` and `request_id`.
    """

    method: str
    target: str
    headers: tuple[tuple[bytes, bytes], ...]
    length: int | None
    complete: bool
    old: bool
    keep_alive: bool = True
    offers_http2: bool = False
    expects_continue: bool = False
    encoding: bytes | None = None
    request_id: bytes | None = None
    received: int = 0
    unread: int = 0
    pieces: list[bytes] = []
    failure: Refused | None = None

    @property
    def plain(self) -> bool:
        """Whether the same head could say nothing else another time."""
        return self.keep_alive and not (self.old or self.offers_http2 or self.length is None)

    def again(self) -> Request:
        """The request that the same head makes when it comes again, if it is `plain`."""
        return Request(
            self.method,
            self.target,
            self.headers,
            self.length,
            complete=not self.length,
            old=False,
            expects_continue=self.expects_continue,
            encoding=self.encoding,
            request_id=self.request_id,
        )


def version_of(data: bytes | bytearray, at: int, method: str, target: bytes) -> bytes:
    """The version in a request line that is not the usual one. Spaces in a row count as one, as they do for
    many others. Raises `Refused`."""
    line = bytes(data[at : data.find(b"\r\n", at)])
    words = [word for word in line.split(b" ") if word]
    if len(words) != 3 or words[:2] != [method.encode(), target] or words[2] not in _VERSIONS:
        raise refusals.malformed()
    return words[2]


def consider(request: Request, picked: dict[bytes, bytes]) -> None:
    """Enters what the less common of the `PICKED` headers mean. Raises `Refused`."""
    options = picked.get(b"connection")
    if options is None or options == _KEEP_ALIVE:
        request.keep_alive = not request.old or options is not None
    else:
        listed = [option.strip() for option in options.lower().split(b",")]
        request.keep_alive = b"close" not in listed and (not request.old or _KEEP_ALIVE in listed)
        if b"upgrade" in listed and b"upgrade" in picked:
            # An offer of HTTP/2 comes with ordinary requests, whose client goes on in HTTP/1 when it is not
            # taken up. Behind any other what comes may be another protocol.
            request.offers_http2 = picked[b"upgrade"].lower() == b"h2c"
            request.keep_alive &= request.offers_http2
    if request.method == "CONNECT":
        request.keep_alive = False
    coding = picked.get(b"transfer-encoding")
    if coding is not None:
        if request.old or coding.lower() != b"chunked" or b"content-length" in picked:
            raise refusals.malformed()
        request.length = None
        request.complete = False
    request.encoding = picked.get(b"content-encoding")
    request.request_id = picked.get(b"x-request-id")
    # HTTP/1.0 knows no interim answers: its client would take one for the answer.
    request.expects_continue = not request.old and picked.get(b"expect", b"").lower() == b"100-continue"


def too_large(limits: ConnectionLimits) -> Refused:
    return refusals.headers_too_large(limits.head_bytes, limits.head_fields)
