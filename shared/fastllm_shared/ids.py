"""UUIDv7 (RFC 9562): 48 bits of Unix milliseconds, then random bits. Minted here because Postgres has
had them only since 18, and a proxy names its events before any database hears of them."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from uuid import UUID

_UUID_SHAPE = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")

_LOW_62 = 2**62 - 1
_TOKEN_DIGITS = 32
_NOISE_BYTES = 256 * _TOKEN_DIGITS // 2
_VARIANT = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}


def uuid7(clock_ns: Callable[[], int] = time.time_ns) -> UUID:
    """A fresh id. `clock_ns` returns Unix nanoseconds."""
    return UUID(uuid7_text(clock_ns))


def uuid7_text(clock_ns: Callable[[], int] = time.time_ns) -> str:
    """A fresh id as canonical text, without building a `UUID` (the request path mints one a request)."""
    millis = (clock_ns() // 1_000_000) & 0xFFFF_FFFF_FFFF
    noise = int.from_bytes(os.urandom(10), "big")
    whole = (millis << 80) | (0x7 << 76) | (((noise >> 62) & 0xFFF) << 64) | (0b10 << 62) | (noise & _LOW_62)
    text = f"{whole:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


class IdSource:
    """Mints UUIDv7 texts where many are needed: entropy is fetched for hundreds at a time, since a system
    call for each costs more than all the rest (4 µs against 0.6). One a process: a fork would repeat what is
    held."""

    __slots__ = ("_at", "_clock_ns", "_millis", "_noise", "_stamp")

    def __init__(self, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._clock_ns = clock_ns
        self._noise = ""
        self._at = 0
        self._millis = -1
        self._stamp = ""

    def token(self) -> str:
        """32 random hexadecimal digits."""
        at = self._at
        if at >= len(self._noise):
            self._noise = os.urandom(_NOISE_BYTES).hex()
            at = 0
        end = self._at = at + _TOKEN_DIGITS
        return self._noise[at:end]

    def text(self) -> str:
        """A fresh id as canonical text."""
        millis = self._clock_ns() // 1_000_000
        if millis != self._millis:  # many ids are minted within one millisecond
            self._millis = millis
            stamp = f"{millis & 0xFFFF_FFFF_FFFF:012x}"
            self._stamp = f"{stamp[:8]}-{stamp[8:]}-7"
        noise = self.token()
        return f"{self._stamp}{noise[:3]}-{_VARIANT[noise[3]]}{noise[4:7]}-{noise[7:19]}"


def has_uuid_shape(text: str) -> bool:
    """Whether `text` reads as a UUID: such names are refused, because every path takes ids and names."""
    return _UUID_SHAPE.fullmatch(text) is not None
