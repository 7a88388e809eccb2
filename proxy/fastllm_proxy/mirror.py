"""Head and tail of an answer, kept while it passes, so that its usage can be read once at the end."""

from __future__ import annotations

from typing import Final

HEAD_BYTES: Final = 4096
TAIL_BYTES: Final = 8192

WHOLE_BYTES: Final = 4 * TAIL_BYTES
"""An answer up to this length is kept whole, unless it is an event stream."""

SLACK_BYTES: Final = TAIL_BYTES + 4096
"""How far the tail may grow before it is cut; what a slow reader's answer costs in memory."""


class Mirror:
    """Takes every piece that a backend sends. Adding is cheap; the tail is trimmed only now and then.

    `whole` says whether nothing was dropped: then `tail` is the whole answer. `readable` turns false when
    what is in it cannot be told. `text` is what is kept, always the same object, and `limit` how long it may
    grow: a relay adds to it in place, since a call for each event of each stream shows in the CPU time.
    """

    __slots__ = ("_head", "event_stream", "limit", "readable", "text", "whole")

    def __init__(self, *, event_stream: bool) -> None:
        self.event_stream = event_stream
        self.readable = True
        self.whole = True
        self.text = bytearray()
        self.limit = SLACK_BYTES if event_stream else WHOLE_BYTES
        self._head = b""

    def add(self, piece: bytes | bytearray) -> None:
        self.text += piece
        if len(self.text) > self.limit:
            self.trim()

    @property
    def empty(self) -> bool:
        """Whether nothing has come so far."""
        return not self.text

    @property
    def head(self) -> bytes:
        """At most the first `HEAD_BYTES` of an answer that is not `whole`."""
        return self._head

    def tail(self) -> bytes:
        """The last bytes of the answer: all of it, or at least `TAIL_BYTES`."""
        return bytes(self.text)

    def trim(self) -> None:
        """Drops what is in the way of neither head nor tail; call when `text` is longer than `limit`."""
        text = self.text
        if self.whole:
            self.whole = False
            self._head = bytes(text[:HEAD_BYTES])
            self.limit = SLACK_BYTES
        del text[:-TAIL_BYTES]


class WholeAnswer(Mirror):
    """An answer that is there already, all of it."""

    __slots__ = ("_body",)

    def __init__(self, body: bytes) -> None:
        self.event_stream = False
        self.readable = True
        self.whole = True
        self._body = body

    @property
    def empty(self) -> bool:
        return not self._body

    def tail(self) -> bytes:
        return self._body
