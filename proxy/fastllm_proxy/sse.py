"""Server-sent events, as far as a relay must understand them: where an event ends, and what is in it."""

from __future__ import annotations

import re
from typing import Final

import msgspec

EVENT_STREAM: Final = b"text/event-stream"

HELD_BYTES: Final = 4096
"""An unfinished event longer than this is no usage event: it is let go."""

# A line end followed by an empty line. Line ends are LF, CRLF or (in no engine seen) CR.
_EVENT_END: Final = re.compile(rb"\r\n\r?\n|\n\r?\n|\r\r")
_END_BYTES: Final = 3  # of which all but the last may stand before a boundary between pieces
_LINE_END: Final = re.compile(rb"\r\n|\n|\r")


class _Chunk(msgspec.Struct, frozen=True):
    # `Raw | None` would take nothing but null; empty stands for absent.
    choices: list[msgspec.Raw] | None = None
    usage: msgspec.Raw = msgspec.Raw()


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


def event_end(text: bytes | bytearray, start: int = 0) -> int:
    """The position behind the first event that begins at `start`, its empty line included; -1 if it is not
    complete."""
    found = _EVENT_END.search(text, start)
    return -1 if found is None else found.end()


def fields(event: bytes) -> tuple[bytes, bytes]:
    """An event's name and data. Comments and other fields are left out."""
    name = b""
    data = []
    for line in _LINE_END.split(event):
        if line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
        elif line.startswith(b"event:"):
            name = line[6:].strip()
    return name, b"\n".join(data)


def is_usage_event(event: bytes) -> bool:
    """Whether it is the extra event that `stream_options.include_usage` brings: no choices, but usage."""
    if b'"usage"' not in event:
        return False
    try:
        chunk = _decode_chunk(fields(event)[1])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return chunk.choices == [] and bytes(chunk.usage) not in (b"", b"null")


class UsageHider:
    """Takes a stream piece by piece and gives it back without the usage event that the client did not ask
    for.

    `held` is the beginning of an event that is not complete. When one grows too long it is let go and the
    hider is `within` it until it ends: `held` then keeps only what its end may have begun with, written
    already.
    """

    __slots__ = ("held", "within")

    def __init__(self) -> None:
        self.held = b""
        self.within = False

    def feed(self, piece: bytes) -> bytes:
        """What may be written now; possibly nothing."""
        # Most pieces are whole events without usage.
        if not self.held and b'"usage"' not in piece and piece.endswith((b"\n\n", b"\r\n\r\n")):
            return piece
        text = self.held + piece
        written = len(self.held) if self.within else 0
        passed = []
        position = 0
        while (end := event_end(text, position)) >= 0:
            event = text[position:end]
            if self.within:
                passed.append(event[written:])
                self.within = False
                written = 0
            elif not is_usage_event(event):
                passed.append(event)
            position = end
        rest = text[position:]
        if self.within or len(rest) > HELD_BYTES:
            self.within = True
            passed.append(rest[written:])
            self.held = rest[-_END_BYTES:]
        else:
            self.held = rest
        return b"".join(passed)

    def rest(self) -> bytes:
        """What is still held when the stream has ended in order: an event that nothing closed."""
        held, self.held = self.held, b""
        return b"" if self.within or is_usage_event(held) else held
