"""Server-sent events, as far as a relay must understand them: where an event ends, and what is in it."""

from __future__ import annotations

import re
from typing import Final

import msgspec

EVENT_STREAM: Final = b"text/event-stream"

PING: Final = b": ping\n\n"
"""A comment: no client sees an event in it, and what lies between sees that the connection lives."""

HELD_BYTES: Final = 4096
"""An unfinished event longer than this is no usage event: it is let go."""

# A line end followed by an empty line; each line end is LF, CRLF or CR. A CR counts at once, though an LF
# that belongs to it may come with the next piece.
_EVENT_END: Final = re.compile(rb"\n(?:\r\n?|\n)|\r(?:\r\n?|\n(?:\r\n?|\n))")
_EVENT_ENDS: Final = (b"\n\n", b"\n\r\n", b"\r\r\n", b"\r\r", b"\n\r")
END_BYTES: Final = 3
"""So many bytes of what ends an event may stand before a boundary between pieces."""

_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_LINE_ENDS: Final = b"\r\n"
_MARK: Final = b"\xef\xbb\xbf"  # a byte order mark, which may begin a stream
_CR: Final = ord("\r")

USAGE: Final = b'"usage"'
"""To be looked for with `find`: `in` tries it as a number first, and an exception is made for each event."""


class _Chunk(msgspec.Struct, frozen=True):
    # `Raw | None` would take nothing but null; empty stands for absent.
    choices: list[msgspec.Raw] | None = None
    usage: msgspec.Raw = msgspec.Raw()


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


def event_end(text: bytes | bytearray, start: int = 0) -> int:
    """The position behind the first event that ends after `start`, its empty line included; -1 if none is
    complete. `start` may lie up to `END_BYTES` before what was not looked at yet."""
    found = _EVENT_END.search(text, start)
    return -1 if found is None else found.end()


def ends_event(text: bytes | bytearray) -> bool:
    """Whether the last byte is the end of an event; the last `END_BYTES` of a text suffice to tell."""
    return text.endswith(_EVENT_ENDS)


def fields(event: bytes | bytearray) -> tuple[bytes, bytes]:
    """An event's name and data. Comments and other fields are left out."""
    name = b""
    data = []
    for line in _LINE_END.split(event.removeprefix(_MARK)):
        if line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
        elif line.startswith(b"event:"):
            name = line[6:].strip()
    return name, b"\n".join(data)


def is_usage_event(event: bytes) -> bool:
    """Whether it is the extra event that `stream_options.include_usage` brings: no choices, but usage."""
    if event.find(USAGE) < 0:
        return False
    try:
        chunk = _decode_chunk(fields(event)[1])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return chunk.choices == [] and bytes(chunk.usage) not in (b"", b"null")


class UsageHider:
    """Takes a stream piece by piece and gives it back without the usage event that the client did not ask
    for.

    `held` is what must be looked at again with the next piece:
        the beginning of an event, of which the client has nothing;
        `within`: the last bytes of an event that grew too long and was let go;
        `_line_open`: the CR that ended an event. An LF that follows goes the way of that event: `_shown`.
    """

    __slots__ = ("_line_open", "_shown", "held", "within")

    def __init__(self) -> None:
        self.held = b""
        self.within = False
        self._line_open = False
        self._shown = False

    def feed(self, piece: bytes) -> bytes:
        """What may be written now; possibly nothing."""
        # Most pieces are whole events without usage.
        if not self.held and piece.find(USAGE) < 0 and piece.endswith((b"\n\n", b"\r\n\r\n")):
            return piece
        passed: list[bytes] = []
        if self._line_open and piece:
            self._line_open = False
            self.held = b""
            if piece[:1] == b"\n":
                if self._shown:
                    passed.append(b"\n")
                piece = piece[1:]
        seen = len(self.held)
        text = self.held + piece
        written = seen if self.within else 0
        position = 0
        while (end := event_end(text, max(position, seen - END_BYTES))) >= 0:
            self._shown = self._pass(text[position:end], written, passed)
            self.within = False
            written = 0
            position = end
        self._hold(text[position:], written, passed)
        if position and position == len(text) and text[-1] == _CR:
            self._line_open = True
            self.held = b"\r"
        return b"".join(passed)

    def rest(self) -> bytes:
        """What is still held when the stream has ended in order: an event that nothing closed."""
        held, self.held = self.held, b""
        return b"" if self.within or self._line_open or is_usage_event(held) else held

    def _pass(self, event: bytes, written: int, passed: list[bytes]) -> bool:
        """Passes on what of an event is not written yet, unless it is to be hidden."""
        if self.within or not is_usage_event(event):
            passed.append(event[written:])
            return True
        passed.append(event[: len(event) - len(event.lstrip(_LINE_ENDS))])  # empty lines are not of it
        return False

    def _hold(self, rest: bytes, written: int, passed: list[bytes]) -> None:
        """Keeps an event that is not complete, or lets it go."""
        if self.within or len(rest) > HELD_BYTES:
            self.within = True
            passed.append(rest[written:])
            self.held = rest[-END_BYTES:]
        else:
            self.held = rest
