"""The top-level members of a JSON object and where they stand in its text, by the standard library: slow, and
right about everything that is valid."""

from __future__ import annotations

import json
import re
from typing import Any, Final, NoReturn

_BOM: Final = b"\xef\xbb\xbf"
_SPACE: Final = re.compile(r"[ \t\n\r]*")
_NAME: Final = re.compile(r'[ \t\n\r]*("(?:[^"\\]++|\\.)*+")[ \t\n\r]*:[ \t\n\r]*', re.DOTALL)
_NEXT: Final = re.compile(r"[ \t\n\r]*([,}])")


class NotAnObject(ValueError):
    """The text is JSON of another kind, or none at all."""


def scan(body: bytes | bytearray) -> list[tuple[str, int, int]]:
    """Every member with the byte span of its value, repeated ones as often as they are there. Raises
    `ValueError` for what is not valid JSON, `NotAnObject` for what is no object, `RecursionError` for what is
    too deep."""
    skipped = len(_BOM) if body.startswith(_BOM) else 0
    text = str(memoryview(body)[skipped:], "utf-8")
    members = _scan_text(text)
    if text.isascii():
        return [(name, start + skipped, end + skipped) for name, start, end in members]
    found = []
    characters, offset = 0, skipped
    for name, start, end in members:
        value_at = offset + len(text[characters:start].encode())
        offset = value_at + len(text[start:end].encode())
        characters = end
        found.append((name, value_at, offset))
    return found


def _scan_text(text: str) -> list[tuple[str, int, int]]:
    """Members with their spans in characters."""
    # Numbers are not converted: one of thousands of digits is valid and would be refused or slow.
    scanner = json.JSONDecoder(parse_int=_same, parse_float=_same, parse_constant=_refuse_constant)
    position = _SPACE.match(text).end()  # type: ignore[union-attr]  # matches everywhere
    if text[position : position + 1] != "{":
        raise NotAnObject
    position += 1
    members: list[tuple[str, int, int]] = []
    empty = _NEXT.match(text, position)
    if empty is not None and empty[1] == "}":
        _expect_end(text, empty.end())
        return members
    while True:
        name = _NAME.match(text, position)
        if name is None:
            raise ValueError("a member's name was expected")
        _, end = scanner.raw_decode(text, name.end())
        members.append((json.loads(name[1]), name.end(), end))
        following = _NEXT.match(text, end)
        if following is None:
            raise ValueError("a comma or the object's end was expected")
        position = following.end()
        if following[1] == "}":
            _expect_end(text, position)
            return members


def _expect_end(text: str, position: int) -> None:
    if text[position:].strip(" \t\n\r"):
        raise ValueError("something follows the object")


def _same(text: str) -> Any:
    return text


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")
