"""Strict decoding of what callers send: every refusal is `Invalid` and names the field."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, unquote

import msgspec

from fastllm_control.errors import Invalid

_WHERE = re.compile(r"^(?P<what>.*?)(?: - at (?:`key` in )?`(?P<path>[^`]*)`)?$", re.DOTALL)
_NAMED = re.compile(r"(?:unknown|required) field `(?P<field>.*)`", re.DOTALL)
_MAX_MESSAGE = 300
_MAX_QUERY_FIELDS = 100


def decode_body(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    """`body` as the decoder's type."""
    if not body.strip():
        raise Invalid("body_missing", "a JSON body is required")
    try:
        decoded = decoder.decode(body)
        if b"\\u0000" in body:
            refuse_nul(msgspec.json.decode(body))
    except msgspec.ValidationError as error:
        raise invalid(error) from None
    except RecursionError:
        raise Invalid("malformed_json", "the body is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid("malformed_json", f"the body is not valid JSON: {_cut(str(error))}") from None
    return decoded


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
        return msgspec.convert(found, kind, strict=False)
    except msgspec.ValidationError as error:
        raise invalid(error) from None


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
