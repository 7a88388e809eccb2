"""Answers that a backend compressed though it was asked not to: they pass as they are, and are inflated
beside that, as far as it is cheap, so that their usage can be read.

gzip of any number of members, zlib, and the bare deflate that some call `deflate`. Whatever else it may be,
several codings one over the other included, is not looked into.
"""

from __future__ import annotations

import zlib
from typing import Final

from fastllm_proxy.client_headers import RawHeaders
from fastllm_proxy.mirror import Mirror
from fastllm_proxy.wire import header

PIECE_BYTES: Final = 1024 * 1024
"""One piece (64 KiB at most) that inflates to more is a bomb, or not worth it: this takes 1 to 3 ms."""

TOTAL_BYTES: Final = 256 * 1024 * 1024
"""An answer that inflates to more is not looked into any further."""

MEMBERS: Final = 1024
"""Members of gzip that begin in one piece. A stream that is flushed event by event may have some hundred."""

ERROR_BYTES: Final = 64 * 1024
"""So much of an error's text is inflated."""

_GZIP: Final = (b"gzip", b"x-gzip")
_GZIP_OR_ZLIB: Final = zlib.MAX_WBITS | 32


def coding_of(headers: RawHeaders) -> bytes:
    """The content coding, lower-cased, empty for none; several are joined by commas."""
    if header(headers, b"content-encoding") is None:
        return b""
    lines = b",".join([value for name, value in headers if name == b"content-encoding"])
    codings = [coding.strip() for coding in lines.lower().split(b",")]
    return b",".join([coding for coding in codings if coding not in (b"", b"identity")])


def mirror_of(coding: bytes, *, event_stream: bool) -> Mirror:
    """What keeps head and tail of an answer of that coding."""
    if coding:
        return CompressedMirror(coding, event_stream=event_stream)
    return Mirror(event_stream=event_stream)


def readable(text: bytes, coding: bytes) -> bytes:
    """The beginning of a text in that coding, bounded; empty if it cannot be told."""
    return Inflater(coding, ERROR_BYTES).feed(text) if coding else text


class Inflater:
    """Inflates piece by piece, never more than `most` bytes at once. `given_up`: no more comes of it."""

    __slots__ = ("_coding", "_most", "_start", "_zlib", "given_up")

    def __init__(self, coding: bytes, most: int = PIECE_BYTES) -> None:
        self._coding = coding
        self._most = most
        self._start = b""  # of a deflate whose kind is not known yet
        self._zlib: zlib._Decompress | None = zlib.decompressobj(_GZIP_OR_ZLIB) if coding in _GZIP else None
        self.given_up = coding != b"deflate" and coding not in _GZIP

    def feed(self, data: bytes | bytearray) -> bytes:
        """What `data` inflates to, as far as it could be told."""
        if self.given_up:
            return b""
        if self._zlib is None:
            self._start += data
            if len(self._start) < 2:
                return b""
            data = self._start
            self._zlib = zlib.decompressobj(_deflate_window(data))
            self._start = b""
        found: list[bytes] = []
        self._inflate(self._zlib, data, found)
        return found[0] if len(found) == 1 else b"".join(found)

    def _inflate(self, member: zlib._Decompress, data: bytes | bytearray, found: list[bytes]) -> None:
        room = self._most
        for _ in range(MEMBERS):
            try:
                found.append(part := member.decompress(data, room))
            except zlib.error:
                break
            room -= len(part)
            data = member.unused_data
            if member.unconsumed_tail or (data and not room):
                break
            if not data and not member.eof:
                return
            if self._coding not in _GZIP:
                return  # what follows the end is nobody's
            if member.eof:
                member = self._zlib = zlib.decompressobj(_GZIP_OR_ZLIB)
            if not data:
                return
        self.given_up = True


class CompressedMirror(Mirror):
    """Keeps head and tail of what a compressed answer says. Given up, it is not `readable`."""

    __slots__ = ("_came", "_inflater", "_left")

    def __init__(self, coding: bytes, *, event_stream: bool, total_bytes: int = TOTAL_BYTES) -> None:
        super().__init__(event_stream=event_stream)
        self._inflater = Inflater(coding)
        self._left = total_bytes
        self._came = False
        self.readable = not self._inflater.given_up

    @property
    def empty(self) -> bool:
        return not self._came

    def add(self, piece: bytes | bytearray) -> None:
        self._came = True
        if not self.readable:
            return
        plain = self._inflater.feed(piece)
        self._left -= len(plain)
        if self._inflater.given_up or self._left < 0:
            self.readable = False
            self.text.clear()
        else:
            super().add(plain)


def _deflate_window(data: bytes | bytearray) -> int:
    """`deflate` is zlib by the standard, and without its header by some servers."""
    wrapped = data[0] & 0x0F == 8 and (data[0] << 8 | data[1]) % 31 == 0
    return zlib.MAX_WBITS if wrapped else -zlib.MAX_WBITS
