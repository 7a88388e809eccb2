"""The chunked transfer coding of a request's body, read strictly and decided apart from any socket.

A line ends in CRLF and nowhere else, a size is hexadecimal digits alone, what follows a chunk is exactly one
line end. Extensions and trailers are checked for their form, bounded, and dropped: a trailer never becomes a
header.
"""

from __future__ import annotations

import re
from typing import Final, Literal

from fastllm_proxy import refusals
from fastllm_proxy.heads import ConnectionLimits, too_large

FRAMING_BYTES: Final = 256 * 1024
"""Framing may exceed the body by this much: a stream of single bytes costs far more than it brings."""

LINE_BYTES: Final = 4 * 1024
"""A chunk's size with its extensions."""

_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,16})(?:;[\t\x20-\x7e\x80-\xff]*)?").fullmatch
_FIELD: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*").fullmatch
_LINE_END: Final = b"\r\n"


class Chunks:
    """Decodes one body. `decoded` counts its bytes, `complete` is set by the last one of its framing.

    State: `_due` is what comes next if `_left`, the bytes missing of the present chunk, is zero; `_line` the
    beginning of a line that is not complete; `_framing` counts what is not body, less what is.
    """

    __slots__ = (
        "_due",
        "_fields",
        "_framing",
        "_left",
        "_limits",
        "_line",
        "_trailers",
        "complete",
        "decoded",
    )

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._due: Literal["size", "end", "trailer"] = "size"
        self._left = 0
        self._line = b""
        self._framing = 0
        self._trailers = 0
        self._fields = 0
        self.decoded = 0
        self.complete = False

    def feed(self, data: bytes | bytearray, view: memoryview, at: int, size: int, pieces: list[bytes]) -> int:
        """Decodes `data[at:size]`, of which `view` is a view, into `pieces`. Returns where it stopped: at
        `size`, or behind the end of the body. Raises `Refused`."""
        while at < size and not self.complete:
            if self._left:
                stop = min(at + self._left, size)
                pieces.append(bytes(view[at:stop]))
                self._left -= stop - at
                self._framing -= stop - at
                self.decoded += stop - at
                at = stop
            else:
                at = self._read_line(data, at, size)
        return at

    def _read_line(self, data: bytes | bytearray, at: int, size: int) -> int:
        begun = self._line
        if begun[-1:] == b"\r":
            if data[at] != 10:
                raise refusals.malformed()
            self._take_line(begun[:-1])
            return at + 1
        end = data.find(_LINE_END, at, size)
        if end < 0:
            self._line = begun + bytes(data[at:size])
            self._check_unfinished()
            return size
        self._take_line(begun + data[at:end])
        return end + 2

    def _check_unfinished(self) -> None:
        line = self._line
        if self._due == "end" and line != b"\r":
            raise refusals.malformed()
        if len(line) > (self._limits.head_bytes if self._due == "trailer" else LINE_BYTES):
            raise too_large(self._limits) if self._due == "trailer" else refusals.malformed()

    def _take_line(self, line: bytes) -> None:
        self._line = b""
        self._framing += len(line) + 2
        if self._framing > FRAMING_BYTES:
            raise refusals.malformed()
        if self._due == "end":
            if line:
                raise refusals.malformed()
            self._due = "size"
        elif self._due == "size":
            found = _SIZE(line)
            if found is None or len(line) > LINE_BYTES:
                raise refusals.malformed()
            self._left = int(found[1], 16)
            self._due = "end" if self._left else "trailer"
        elif not line:
            self.complete = True
        else:
            self._check_trailer(line)

    def _check_trailer(self, line: bytes) -> None:
        self._trailers += len(line) + 2
        self._fields += 1
        if self._trailers > self._limits.head_bytes or self._fields > self._limits.head_fields:
            raise too_large(self._limits)
        if _FIELD(line) is None:
            raise refusals.malformed()
