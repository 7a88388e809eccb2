"""The top-level members of a request body that matter, and where they stand in it.

A body is forwarded byte for byte, so what is changed in it is spliced at exact positions. They are found by
walking the top level, never by searching text: a `model` inside a prompt or a nested object is content.
The fast decoder hands out each top-level value as a slice of the body; the positions follow from their
lengths. Duplicates would make two readers see two different requests, hence they are refused where it
matters.
"""

from __future__ import annotations

import re
from typing import NoReturn

import msgspec

from fastllm_proxy.errors import Refused
from fastllm_shared.members import NotAnObject, scan

Edit = tuple[int, int, bytes]
"""Replaces `body[start:end]`; an insertion where both are equal."""

Body = bytes | bytearray

_UNREPEATABLE = ("model", "stream", "stream_options")
_ASK = b'{"include_usage":true}'
_SPACE = rb"[ \t\n\r]*"
_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_MEMBER = re.compile(
    _SPACE + rb"[{,]" + _SPACE + rb"(" + _STRING + rb")" + _SPACE + rb":" + _SPACE, re.DOTALL
)
_END = re.compile(_SPACE + rb"\}" + _SPACE + rb"\Z")

_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_text = msgspec.json.Decoder(str).decode


class Peek(msgspec.Struct, frozen=True, gc=False):
    """`members` maps each top-level name to its value's text (the last one of a repeated name, as parsers
    do). The spans are byte positions of values; `options_span` is `None` without a `stream_options`;
    `first_member` is where a member can be inserted before all others."""

    model: str
    model_span: tuple[int, int]
    stream: bool
    options_span: tuple[int, int] | None
    first_member: int
    members: dict[str, msgspec.Raw]


def peek(body: Body) -> Peek:
    """Reads a JSON body. Raises `Refused` 400: `invalid_json`, `missing_required_parameter`,
    `ambiguous_parameter`."""
    try:
        members = _decode_members(body)
    except msgspec.ValidationError:
        _refuse_kind()
    except RecursionError:
        _refuse_depth()
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _peek_slowly(body)
    raw_model = members.get("model")
    if raw_model is None:
        _refuse_model()
    # A body without any white space has exactly this length. One with a repeated member is longer, because
    # only one of them is in `members`, and so is one with an escaped name.
    position = 1
    model_at = options_at = 0
    for name, raw in members.items():
        start = position + len(name) + 3
        if name == "model":
            model_at = start
        elif name == "stream_options":
            options_at = start
        position = start + len(raw) + 1
    first = 1
    if position != len(body):
        spans = _walk(body, members)
        if spans is None:
            return _peek_slowly(body)
        first, model_at, options_at = spans
    raw_options = members.get("stream_options")
    return Peek(
        _model_of(raw_model),
        (model_at, model_at + len(raw_model)),
        "stream" in members and bytes(members["stream"]) == b"true",
        None if raw_options is None else (options_at, options_at + len(raw_options)),
        first,
        members,
    )


def ask_for_usage(seen: Peek, body: Body) -> Edit | None:
    """What makes a stream report its usage; `None` if it does already or cannot be made to."""
    span = seen.options_span
    if span is None:
        return seen.first_member, seen.first_member, b'"stream_options":' + _ASK + b","
    start, end = span
    text = bytes(body[start:end])
    if text == b"null":
        return start, end, _ASK
    try:
        options = _scan(text)
    except Refused:
        return None  # not an object: the engine says so better than we could
    flag = next((member for member in reversed(options) if member[0] == "include_usage"), None)
    if flag is None:
        comma = b"," if options else b""
        return start + 1, start + 1, b'"include_usage":true' + comma
    _, value_start, value_end = flag
    if text[value_start:value_end] in (b"false", b"null"):
        return start + value_start, start + value_end, b"true"
    return None


def rename(seen: Peek, name: str) -> Edit:
    """What makes the request name another model."""
    return (*seen.model_span, msgspec.json.encode(name))


def splice(body: Body, edits: list[Edit]) -> list[bytes | bytearray | memoryview]:
    """The body with its edits made, in pieces: the body itself between them is not copied."""
    if not edits:
        return [body]
    edits.sort()
    pieces: list[bytes | bytearray | memoryview] = []
    view = memoryview(body)
    position = 0
    for start, end, replacement in edits:
        pieces.append(view[position:start])
        pieces.append(replacement)
        position = end
    pieces.append(view[position:])
    return pieces


def _model_of(raw: msgspec.Raw) -> str:
    try:
        return _decode_text(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        _refuse_model()


def _walk(body: Body, members: dict[str, msgspec.Raw]) -> tuple[int, int, int] | None:
    """Start of the first name, of `model`'s value and of `stream_options`' (0 if absent).

    `None` unless the body consists of exactly these members in this order, each once. Each value is
    compared with the text at its place: it delimits itself, so the walk cannot be led astray.
    """
    position = first = model_at = options_at = 0
    for name, raw in members.items():
        found = _MEMBER.match(body, position)
        if found is None or (found[1][1:-1] != name.encode() and _decode_text(found[1]) != name):
            return None
        start = found.end()
        if not body.startswith(raw, start):
            return None
        if not position:
            first = found.start(1)
        if name == "model":
            model_at = start
        elif name == "stream_options":
            options_at = start
        position = start + len(raw)
    return (first, model_at, options_at) if _END.match(body, position) else None


def _peek_slowly(body: Body) -> Peek:
    """For what the fast decoder refuses (lone surrogates, a byte order mark) and for repeated members."""
    found = _scan(body)
    spans: dict[str, tuple[int, int]] = {}
    for name, start, end in found:
        if name in spans and name in _UNREPEATABLE:
            raise Refused(400, "ambiguous_parameter", f"{name} is given more than once", param=name)
        spans[name] = (start, end)
    if "model" not in spans:
        _refuse_model()
    members = {name: msgspec.Raw(bytes(body[start:end])) for name, (start, end) in spans.items()}
    return Peek(
        _model_of(members["model"]),
        spans["model"],
        "stream" in members and bytes(members["stream"]) == b"true",
        spans.get("stream_options"),
        body.index(b"{") + 1,
        members,
    )


def _scan(body: Body) -> list[tuple[str, int, int]]:
    """Every member with the byte span of its value. Raises `Refused` `invalid_json`."""
    try:
        return scan(body)
    except RecursionError:
        _refuse_depth()
    except NotAnObject:
        _refuse_kind()
    except ValueError:
        raise Refused(400, "invalid_json", "the request body is not valid JSON") from None


def _refuse_kind() -> NoReturn:
    raise Refused(400, "invalid_json", "the request body is not a JSON object") from None


def _refuse_depth() -> NoReturn:
    raise Refused(400, "invalid_json", "the request body is nested too deeply")


def _refuse_model() -> NoReturn:
    raise Refused(
        400,
        "missing_required_parameter",
        "you must provide a model parameter that is a string",
        param="model",
    )
