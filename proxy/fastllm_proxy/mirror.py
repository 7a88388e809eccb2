"""Head and tail of an answer, kept while it passes, so that its usage can be read once at the end."""

from __future__ import annotations

from typing import Final

HEAD_BYTES: Final = 8192
TAIL_BYTES: Final = 8192

SLACK_BYTES: Final = 4 * TAIL_BYTES


class Mirror:
    """Takes every piece that a backend sends. Appending is cheap; the tail is trimmed only now and then.

    `whole` says whether nothing was dropped: then `tail` is the whole answer. `parts` and `size` are what is
    kept: a relay adds to them in place, since a call for each event of each stream shows in the CPU time.
    """

    __slots__ = ("_head", "encoding", "event_stream", "parts", "size", "whole")

    def __init__(self, *, event_stream: bool, encoding: bytes = b"") -> None:
        """`encoding` is the answer's content coding, empty for none."""
        self.event_stream = event_stream
        self.encoding = encoding
        self.whole = True
        self._head = b""
        self.parts: list[bytes | bytearray] = []
        self.size = 0

    def add(self, piece: bytes | bytearray) -> None:
        self.parts.append(piece)
        self.size += len(piece)
        if self.size > SLACK_BYTES:
            self.trim()

    @property
    def empty(self) -> bool:
        return not self.size

    @property
    def head(self) -> bytes:
        """At most the first `HEAD_BYTES` of an answer that is not `whole`."""
        return self._head

    def tail(self) -> bytes:
        """The last bytes of the answer: all of it, or at least `TAIL_BYTES`."""
        return b"".join(self.parts)

    def trim(self) -> None:
        """Drops what is in the way of neither head nor tail; call when `size` exceeds `SLACK_BYTES`."""
        kept = b"".join(self.parts)
        if self.whole:
            self.whole = False
            self._head = kept[:HEAD_BYTES]
        kept = kept[-TAIL_BYTES:]
        self.parts = [kept]
        self.size = len(kept)
