"""Undoing a request's `Content-Encoding`: gzip (of any number of members), zlib, and bare deflate, which some
send as `deflate`. In steps of bounded size, so that neither memory nor the event loop is at the mercy of who
sent it."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from typing import Final

from fastllm_proxy import refusals

INFLATED_FROM_BYTES: Final = 64 * 1024
"""Compressed bytes taken at a time: zlib copies what it leaves over."""

INFLATED_STEP_BYTES: Final = 256 * 1024
"""Inflated in one go, about 1 ms of work; other requests get their turn between two steps."""

KEPT_BYTES: Final = 1024 * 1024
"""So much is kept at once of a body that is to be whole in memory; what is larger is counted before it is
kept, lest a bomb fill the memory up to the limit on its way to being refused."""

MAX_MEMBERS: Final = 10_000
"""Members of one gzip body. Block gzip makes one of 64 KiB: 1,000 in the largest body that is let in."""

_MEMBERS_AT_ONCE: Final = 64


class Inflater:
    """Give it what came with `put`, then `take` until that gives `None`; in the end `finish`.

    `_rest` is what zlib has not seen yet; `_zlib` is `None` before the format is known and between members.
    """

    __slots__ = ("_gzip", "_members", "_rest", "_zlib")

    def __init__(self) -> None:
        self._zlib: zlib._Decompress | None = None
        self._gzip = False
        self._members = 0
        self._rest: bytes | bytearray | memoryview = b""

    def copy(self) -> Inflater:
        """Another one that goes on from here."""
        other = Inflater()
        other._zlib = None if self._zlib is None else self._zlib.copy()
        other._gzip, other._members, other._rest = self._gzip, self._members, self._rest
        return other

    def put(self, data: bytes | memoryview) -> None:
        """At most `INFLATED_FROM_BYTES` at a time, and only when nothing is left to take."""
        self._rest = b"".join((self._rest, data)) if self._rest else data

    def take(self) -> bytes | None:
        """The next step, maybe empty; `None` when more has to be put first. Raises `Refused` 400."""
        for _ in range(_MEMBERS_AT_ONCE):
            if self._zlib is None and not self._begin():
                return None
            inflater = self._zlib
            assert inflater is not None
            try:
                piece = inflater.decompress(self._rest, INFLATED_STEP_BYTES)
            except zlib.error:
                raise refusals.undecodable_body() from None
            if inflater.eof:
                self._zlib = None
                self._rest = inflater.unused_data
            else:
                self._rest = inflater.unconsumed_tail
                if not self._rest and len(piece) < INFLATED_STEP_BYTES:
                    return piece or None
            if piece:
                return piece
        return b""

    def finish(self) -> None:
        """Raises `Refused` 400 unless what came was complete."""
        if self._zlib is not None or self._rest or not self._members:
            raise refusals.undecodable_body()

    def _begin(self) -> bool:
        """Opens the next member, if enough has come to know its format."""
        start = bytes(self._rest[:2])
        if len(start) < 2:  # no format is complete in so little
            return False
        gzip = start == b"\x1f\x8b"
        self._members += 1
        if self._members > 1 and not (gzip and self._gzip and self._members <= MAX_MEMBERS):
            raise refusals.undecodable_body()
        self._gzip = gzip
        wrapped = gzip or start[0] & 0x0F == 8
        self._zlib = zlib.decompressobj(zlib.MAX_WBITS | 32 if wrapped else -zlib.MAX_WBITS)
        return True


async def inflate(data: bytes | bytearray, max_bytes: int, hold: Callable[[int], None]) -> bytearray:
    """All of `data`, decoded. `hold` is told of each piece before it is kept. Raises `Refused`: 413 above
    `max_bytes`, 400 for what does not decode, and what `hold` raises."""
    view = memoryview(data)
    kept = bytearray()
    inflater = Inflater()
    position = 0
    counted = False
    while True:
        piece, position = _step(inflater, view, position)
        if piece is None:
            return kept
        size = len(kept) + len(piece)
        if not counted and size > min(KEPT_BYTES, max_bytes):
            await _count(inflater.copy(), view, position, size, max_bytes)
            counted = True
        hold(len(piece))
        kept += piece
        if position < len(view) or not piece or len(piece) >= INFLATED_STEP_BYTES:
            await asyncio.sleep(0)


async def _count(inflater: Inflater, view: memoryview, position: int, size: int, max_bytes: int) -> None:
    """Inflates the rest and keeps none of it. Raises `Refused` 413 and 400."""
    piece: bytes | None = b""
    while piece is not None:
        if size > max_bytes:
            raise refusals.request_too_large(max_bytes)
        await asyncio.sleep(0)
        piece, position = _step(inflater, view, position)
        size += 0 if piece is None else len(piece)


def _step(inflater: Inflater, view: memoryview, position: int) -> tuple[bytes | None, int]:
    """The next piece, `None` at the end of all, and how much of `view` is used."""
    while (piece := inflater.take()) is None:
        if position >= len(view):
            inflater.finish()
            break
        inflater.put(view[position : position + INFLATED_FROM_BYTES])
        position += INFLATED_FROM_BYTES
    return piece, position
