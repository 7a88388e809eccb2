"""Head and tail of an answer, kept while it passes, so that its usage can be read once at the end."""

from __future__ import annotations

from typing import Final

HEAD_BYTES: Final = 8192
TAIL_BYTES: Final = 8192

_SLACK: Final = 4 * TAIL_BYTES


class Mirror:
    """Takes every piece that a backend sends. Appending is cheap; the tail is trimmed only now and then.

    `whole` says whether nothing was dropped: then `tail` is the whole answer.
    """

    __slots__ = ("_head", "_parts", "_size", "encoding", "event_stream", "whole")

    def __init__(self, *, event_stream: bool, encoding: bytes = b"") -> None:
        """`encoding` is the answer's content coding, empty for none."""
        self.event_stream = event_stream
        self.encoding = encoding
        self.whole = True
        self._head = b""
        self._parts: list[bytes | bytearray] = []
        self._size = 0

    def add(self, piece: bytes | bytearray) -> None:
        self._parts.append(piece)
        self._size += len(piece)
        if self._size > _SLACK:
            self._trim()

    @property
    def empty(self) -> bool:
        return not self._size

    @property
    def head(self) -> bytes:
        """At most the first `HEAD_BYTES` of an answer that is not `whole`."""
        return self._head

    def tail(self) -> bytes:
        """The last bytes of the answer: all of it, or at least `TAIL_BYTES`."""
        return b"".join(self._parts)

    def _trim(self) -> None:
        kept = b"".join(self._parts)
        if self.whole:
            self.whole = False
            self._head = kept[:HEAD_BYTES]
        kept = kept[-TAIL_BYTES:]
        self._parts = [kept]
        self._size = len(kept)
