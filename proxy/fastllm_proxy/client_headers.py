"""What the headers of a client's request say, worked out in one pass: who asks, how many gateways it came
through, which lines go on to a backend.

A client that keeps its connection mostly sends the same headers with every request, so `accept` asks
whether they are the same as before, which costs a tenth of reading them again.
"""

from __future__ import annotations

from typing import Final

from fastllm_shared.keys import digest_of

RawHeaders = tuple[tuple[bytes, bytes], ...]

MAX_HOPS: Final = 4
"""Gateways in a row; one more is refused: somebody has pointed them at each other."""

HOP_HEADER: Final = b"x-fastllm-hop"

HOP_BY_HOP: Final = frozenset(
    (b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"http2-settings")
)
PLAIN_CONNECTION: Final = frozenset((b"keep-alive", b"close"))

_CREDENTIALS: Final = frozenset((b"api-key", b"authorization", b"x-api-key"))
_BEARER: Final = b"bearer "
_SECRET_BYTES: Final = 16
"""What is shorter is no key of ours, and may well be part of another header."""

_DROPPED: Final = (
    HOP_BY_HOP
    | _CREDENTIALS
    | frozenset(
        (
            b"accept-encoding",
            b"content-encoding",  # the body was inflated
            b"content-length",
            b"cookie",
            b"expect",
            b"forwarded",
            b"host",
            b"x-goog-api-key",
            b"x-real-ip",
            b"x-request-id",
            HOP_HEADER,
        )
    )
)
_DROPPED_PREFIXES: Final = (b"proxy-", b"x-forwarded-")


class ClientHeaders:
    """`raw` is as sent. `digests` are those of the keys that were presented, in order; `hops` counts the
    gateways before this one, and is at least `MAX_HOPS` for what is no number.

    State: `_kept` are the headers that go on to a backend that sets none itself, as lower-cased name and
    line; `_lines` is what goes on to the last backend asked for, which sets `_own`.
    """

    __slots__ = ("_kept", "_lines", "_own", "digests", "hops", "raw")

    def __init__(self, raw: RawHeaders) -> None:
        self.raw = raw
        self.hops = 0
        self.digests: tuple[bytes, ...] = ()
        self._own: frozenset[bytes] | None = None
        self._lines = b""
        kept = []
        secrets = []
        listed: frozenset[bytes] = frozenset()
        for name, value in raw:
            lowered = name.lower()
            if lowered in _DROPPED:
                if lowered in _CREDENTIALS:
                    secrets.append(value.rpartition(b" ")[2])  # without its scheme
                    key = _presented(lowered, value)
                    if key is not None:
                        self.digests += (digest_of(key),)
                elif lowered == b"connection" and value.lower() not in PLAIN_CONNECTION:
                    listed |= connection_options(value)
                elif lowered == HOP_HEADER:
                    self.hops = max(self.hops, _hops(value))
            elif not lowered.startswith(_DROPPED_PREFIXES):
                kept.append((lowered, b"%b: %b\r\n" % (name, value)))
        if listed:
            kept = [line for line in kept if line[0] not in listed]
        for secret in secrets:  # the client's key goes nowhere, under whatever name it is repeated
            if len(secret) >= _SECRET_BYTES:
                kept = [line for line in kept if secret not in line[1]]
        self._kept = kept

    def passing(self, own: frozenset[bytes]) -> bytes:
        """The lines that go on, each with its CRLF, to a backend whose configuration sets `own`."""
        if own != self._own:
            self._own = own
            self._lines = b"".join([line for name, line in self._kept if name not in own])
        return self._lines


def _presented(name: bytes, value: bytes) -> bytes | None:
    """The key that a credential header carries."""
    if name != b"authorization":
        return value
    return value[7:].strip() if value[:7].lower() == _BEARER else None


def _hops(value: bytes) -> int:
    text = value.strip()
    return int(text) if text.isdigit() and len(text) < 4 else MAX_HOPS


def connection_options(value: bytes) -> frozenset[bytes]:
    """The header names that a `Connection` header declares to be for one hop only."""
    return frozenset(option.strip().lower() for option in value.split(b","))
