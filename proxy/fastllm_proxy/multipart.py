"""Finds the parts of a `multipart/form-data` body as it comes, at exact byte offsets. What files hold is
passed over, never held.

What two readers could understand in two ways is refused: we decide upon `model`, and the engine must read the
same one. So this reads the plain form that clients write (RFC 7578), and takes no liberties:

    --BOUNDARY CRLF                            where the body starts
    header: value CRLF … CRLF                  one `Content-Disposition: form-data; name="…"` among them
    content
    CRLF --BOUNDARY CRLF  or  CRLF --BOUNDARY--   nothing but line ends after the last
"""

from __future__ import annotations

import re
from typing import Final, Literal

import msgspec

from fastllm_proxy.part_heads import PartHead, read_part_head
from fastllm_proxy.refusals import invalid_form

MAX_PARTS: Final = 1_000
PART_HEAD_BYTES: Final = 16 * 1024
VALUE_BYTES: Final = 64 * 1024
"""A field's value is kept up to here; a longer one is passed over like a file."""

VALUES_BYTES: Final = 1024 * 1024
"""All values of a form that are kept, together."""

_CR: Final = 13
_LINE_END: Final = b"\r\n"
_LONE_LINE_END: Final = "a boundary stands after a line end that is not CRLF"
_FORM: Final = b"multipart/form-data"
_BOUNDARY: Final = re.compile(rb"[0-9A-Za-z'()+_,\-./:=? ]{0,69}[0-9A-Za-z'()+_,\-./:=?]").fullmatch
_BARE: Final = re.compile(rb"[0-9A-Za-z'()+_\-./:=?]+").fullmatch
_SAYS_BOUNDARY: Final = re.compile(rb";[ \t]*boundary", re.IGNORECASE).findall
_PARAMETER: Final = re.compile(rb'[ \t]*;[ \t]*([^=; \t"]+)=("[^"\\]*"|[^;"]*)')


class Part(msgspec.Struct, frozen=True):
    """A part's content stands at `body[start:end]`. `value` is it, if it was small and no file."""

    head: PartHead
    start: int
    end: int
    value: bytes | None


def boundary_of(content_type: bytes) -> bytes | None:
    """The boundary that a `Content-Type` names; `None` when it is no form. Raises `Refused` 400."""
    kind, mark, _ = content_type.partition(b";")
    if kind.strip(b" \t").lower() != _FORM:
        return None
    position = len(kind)
    end = len(content_type.rstrip(b" \t;"))
    found: list[bytes] = []
    while mark and position < end:
        parameter = _PARAMETER.match(content_type, position)
        if parameter is None:
            raise invalid_form("its Content-Type cannot be read")
        if parameter[1].lower().startswith(b"boundary"):
            found.append(parameter[2] if parameter[1].lower() == b"boundary" else b"")
        position = parameter.end()
    # A reader that knows no quotes must find no other one.
    if len(found) != 1 or len(_SAYS_BOUNDARY(content_type)) != 1:
        raise invalid_form("its Content-Type must name one boundary")
    text = found[0].strip(b" \t")
    boundary = text[1:-1] if text[:1] == b'"' else text
    if not (_BOUNDARY(boundary) and (text[:1] == b'"' or _BARE(boundary))):
        raise invalid_form("its boundary must have 1 to 70 plain characters")
    return boundary


class FormScanner:
    """Give it the body in pieces with `feed`, then `finish`; `parts` are those that are complete.

    State: `_held` is what has come and may still be needed; it starts at offset `_at` of the body. `_state`
    says what is expected: `start` the first boundary, `head` a part's headers, `content`, `end` nothing but
    line ends. Of the part that is open: `_head`, `_content_at`, and `_kept`, which is its value so far, or
    `None` when none is kept.
    """

    __slots__ = ("_at", "_content_at", "_delimiter", "_head", "_held", "_kept", "_room", "_state", "parts")

    def __init__(self, boundary: bytes) -> None:
        self._delimiter = b"--" + boundary
        self._held = b""
        self._at = 0
        self._state: Literal["start", "head", "content", "end"] = "start"
        self._head: PartHead | None = None
        self._content_at = 0
        self._kept: bytearray | None = None
        self._room = VALUES_BYTES
        self.parts: list[Part] = []

    def feed(self, piece: bytes) -> None:
        """Raises `Refused` 400 as soon as something is wrong."""
        held = self._held = self._held + piece if self._held else piece
        position, goes_on = 0, True
        while goes_on:
            if self._state == "content":
                position, goes_on = self._read_content(held, position)
            elif self._state == "head":
                position, goes_on = self._read_head(held, position)
            elif self._state == "start":
                position, goes_on = self._read_start(held)
            else:
                position, goes_on = self._read_end(held, position)
        self._held = held[position:]
        self._at += position

    def finish(self) -> None:
        """Raises `Refused` 400 unless the form was complete."""
        if self._state != "end":
            raise invalid_form("it has no closing boundary")

    # Each reads from a position of `held`; returns up to where it has, and whether there may be more.

    def _read_start(self, held: bytes) -> tuple[int, bool]:
        # Some write a line end before the first boundary too.
        expected = (_LINE_END if held.startswith(b"\r") else b"") + self._delimiter
        if not (held.startswith(expected) or expected.startswith(held)):
            raise invalid_form("it does not start with its boundary")
        return self._after_delimiter(held, 0, len(expected))

    def _after_delimiter(self, held: bytes, position: int, end: int) -> tuple[int, bool]:
        """`end` is where the boundary ends."""
        following = held[end : end + 2]
        if len(following) < 2:
            return position, False
        if following == _LINE_END:
            self._state = "head"
        elif following == b"--":
            self._state = "end"
        else:
            raise invalid_form("a boundary is followed by something other than a line end")
        return end + 2, True

    def _read_head(self, held: bytes, position: int) -> tuple[int, bool]:
        if len(self.parts) >= MAX_PARTS:
            raise invalid_form(f"it has more than {MAX_PARTS} parts")
        end = held.find(b"\r\n\r\n", position, position + PART_HEAD_BYTES)
        if end < 0:
            if len(held) - position >= PART_HEAD_BYTES:
                raise invalid_form(f"a part's headers exceed {PART_HEAD_BYTES // 1024} KiB")
            return position, False
        head = self._head = read_part_head(held[position:end])
        self._kept = None if head.is_file else bytearray()
        self._content_at = self._at + end + 4
        self._state = "content"
        return end + 4, True

    def _read_content(self, held: bytes, position: int) -> tuple[int, bool]:
        delimiter = self._delimiter
        if self._at + position == self._content_at and held.startswith(delimiter, position):
            raise invalid_form("a boundary follows a part's headers without a line end of its own")
        found = held.find(b"\n" + delimiter, position)
        until = len(held) if found < 0 else found + len(delimiter)
        if held.find(b"\r" + delimiter, position, until) >= 0:
            raise invalid_form(_LONE_LINE_END)
        if found < 0:
            # What may be the beginning of a boundary with its line end is looked at again.
            return self._keep(held, position, len(held) - len(delimiter) - 1), False
        if found == position or held[found - 1] != _CR:
            raise invalid_form(_LONE_LINE_END)
        position = self._keep(held, position, found - 1)
        goes_on_at, complete = self._after_delimiter(held, position, found + 1 + len(delimiter))
        if complete:
            assert self._head is not None
            value = None if self._kept is None else bytes(self._kept)
            self.parts.append(Part(self._head, self._content_at, self._at + position, value))
        return goes_on_at, complete

    def _keep(self, held: bytes, position: int, end: int) -> int:
        """Passes over content up to `end`."""
        if end <= position:
            return position
        if self._kept is not None:
            size = end - position
            if len(self._kept) + size > VALUE_BYTES or size > self._room:
                self._kept = None
            else:
                self._kept += held[position:end]
                self._room -= size
        return end

    def _read_end(self, held: bytes, position: int) -> tuple[int, bool]:
        if held[position:].strip(_LINE_END):
            raise invalid_form("something follows its closing boundary")
        return len(held), False
