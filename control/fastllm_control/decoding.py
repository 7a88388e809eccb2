"""Strict decoding of what callers send: every refusal is `Invalid` and names the field."""

from __future__ import annotations

import datetime
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, unquote

import msgspec

from fastllm_control.errors import Invalid

_WHERE = re.compile(r"^(?P<what>.*?)(?: - at (?:`key` in )?`(?P<path>[^`]*)`)?$", re.DOTALL)
_NAMED = re.compile(r"(?:unknown|required) field `(?P<field>.*)`", re.DOTALL)
_DATE = re.compile(r"[0-9]{4}-")
_JSON_TYPE = re.compile(r"(?:application|text)/(?:[^/]*\+)?json")
_TAKEN_FOR_JSON = frozenset(
    {"", "application/octet-stream", "application/x-www-form-urlencoded", "text/plain"}
)
_MAX_MESSAGE = 300
_MAX_QUERY_FIELDS = 100


def decode_body(decoder: msgspec.json.Decoder[Any], body: bytes, *, unique: bool = True) -> Any:
    """`body` as the decoder's type. `unique` refuses a member that an object has twice: of what people write,
    where one of the two would be lost without a word. It costs some 20 ms a MiB."""
    if not body.strip():
        raise Invalid("body_missing", "a JSON body is required")
    try:
        decoded = decoder.decode(body)
        if b"\\u0000" in body:
            refuse_nul(msgspec.json.decode(body))
        if unique:
            refuse_repeated(body)
    except msgspec.ValidationError as error:
        raise invalid(error) from None
    except RecursionError:
        raise Invalid("malformed_json", "the body is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid("malformed_json", f"the body is not valid JSON: {_cut(str(error))}") from None
    return decoded


def refuse_other_formats(content_type: str | None, content_encoding: str | None) -> None:
    """Raise `Invalid` for a body that says it is something else than JSON.

    What says nothing of its format is taken for JSON: no type at all, and what curl (a form), browsers'
    `fetch` (plain text) and some libraries (bytes) write of themselves.
    """
    kind = (content_type or "").partition(";")[0].strip().lower()
    if kind not in _TAKEN_FOR_JSON and not _JSON_TYPE.fullmatch(kind):
        raise Invalid(
            "unsupported_content_type",
            f"the body must be JSON (Content-Type: application/json), not {_cut(kind)}",
        )
    encoding = (content_encoding or "").strip().lower()
    if encoding not in ("", "identity"):
        raise Invalid(
            "unsupported_encoding", f"the body must not be compressed, and this is {_cut(encoding)}"
        )


def decode_query(kind: type[msgspec.Struct] | None, raw: bytes) -> Any:
    """The query string as `kind`, or `None` when the operation takes no parameters (then none may be)."""
    try:
        pairs = parse_qsl(
            raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=_MAX_QUERY_FIELDS
        )
    except ValueError:
        raise Invalid("malformed_query", "the query string is not valid") from None
    found: dict[str, str] = {}
    for name, value in pairs:
        if name in found:
            raise Invalid("repeated_parameter", f"`{_cut(name)}` is given more than once", _cut(name))
        found[name] = value
    if kind is None:
        if found:
            name = _cut(next(iter(found)))
            raise Invalid("unknown_field", f"there is no parameter `{name}` here", name)
        return None
    refuse_nul(found)
    try:
        query = msgspec.convert(found, kind, strict=False)
    except msgspec.ValidationError as error:
        raise invalid(error) from None
    for name, value in found.items():
        # msgspec reads the word `null` as no value: a filter would be left out without a word.
        if value.lower() == "null" and getattr(query, name, value) is None:
            raise Invalid("invalid_value", f"`{name}` must not be null: leave it out", name)
        # It also reads a number as a time, Unix seconds.
        if isinstance(getattr(query, name, None), datetime.datetime) and not _DATE.match(value):
            raise Invalid("invalid_value", f"`{name}` must be a time such as 2031-01-01T00:00:00Z", name)
    return query


def decode_path(raw: Mapping[str, str]) -> dict[str, str]:
    """Percent-decoded path parameters."""
    decoded = {}
    for name, value in raw.items():
        try:
            decoded[name] = unquote(value, errors="strict")
        except UnicodeDecodeError:
            raise Invalid("malformed_path", f"`{name}` in the path is not valid UTF-8", name) from None
    refuse_nul(decoded)
    return decoded


def invalid(error: msgspec.ValidationError) -> Invalid:
    """What msgspec found wrong, with the field's path as callers would write it (`targets[0].weight`)."""
    parts = _WHERE.match(str(error))
    what, path = (parts["what"], parts["path"]) if parts else (str(error), None)
    named = _NAMED.search(what)
    steps = (path or "$").removeprefix("$").removeprefix(".")
    field = ".".join(part for part in (steps, named["field"] if named else "") if part)
    unknown = named is not None and "unknown" in what
    if " matching regex " in what:
        what = "it holds characters that are not allowed here, or not at its start or end"
    return Invalid("unknown_field" if unknown else "invalid_value", _cut(what), _cut(field) or None)


def refuse_nul(value: object) -> None:
    """Postgres stores no NUL character in text: refuse it here, where the field can still be named."""
    for path, text in _texts(value, ""):
        if "\0" in text:
            raise Invalid("invalid_value", "text must not hold a NUL character", _cut(path) or None)


def refuse_repeated(body: bytes) -> None:
    """Raise `Invalid` for a member that an object has twice. `body` is JSON that is known to be right."""
    found = False

    def mapping(pairs: list[tuple[str, Any]]) -> object:
        nonlocal found
        members = dict(pairs)
        if len(members) == len(pairs):
            return members
        found = True
        counts = Counter(name for name, _ in pairs)
        return _Repeated(next(name for name, count in counts.items() if count > 1))

    # Numbers stay text: what they are worth is not the question, and huge ones would take long to read.
    value = json.loads(body, object_pairs_hook=mapping, parse_int=str, parse_float=str)
    if found:
        field = _cut(next(_repeated(value, "")))
        raise Invalid("repeated_field", f"`{field}` is given more than once", field)


class _Repeated(msgspec.Struct, frozen=True):
    """Stands for an object that has a member twice."""

    name: str


def _repeated(value: object, path: str) -> Iterator[str]:
    if isinstance(value, _Repeated):
        yield f"{path}.{value.name}" if path else value.name
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _repeated(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _repeated(inner, f"{path}[{index}]")


def _texts(value: object, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield path, str(name)
            yield from _texts(inner, f"{path}.{name}" if path else str(name))
    elif isinstance(value, Sequence):
        for index, inner in enumerate(value):
            yield from _texts(inner, f"{path}[{index}]")


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_MESSAGE else text[:_MAX_MESSAGE] + "…"
