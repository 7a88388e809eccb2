"""YAML → document, and document → YAML.

Of YAML the part is read that configuration needs: one document of mappings, lists and scalars, where plain
scalars are what the core schema of YAML 1.2 says (`on`, `22:00` and `1_000` are text). Aliases, tags, merge
keys and repeated keys are refused: what stands there is what is meant. JSON is YAML, so it is read too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import yaml
from msgspec import UNSET, Struct

from fastllm_control.declared.document import (
    DeclaredFrontend,
    DeclaredModel,
    DeclaredPool,
    DeclaredPrincipal,
    DeclaredProvider,
    DeclaredRole,
    Document,
)
from fastllm_control.declared.problems import Broken, Lines, Problem
from fastllm_control.decoding import invalid, refuse_nul
from fastllm_control.errors import Invalid

MAX_BYTES = 8 * 1024 * 1024
MAX_DEPTH = 32
_MAX_DIGITS = 400

_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(
    r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
_WORDS: Mapping[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_SECTIONS: Mapping[str, type[Struct]] = {
    "providers": DeclaredProvider,
    "provider_models": DeclaredModel,
    "pools": DeclaredPool,
    "frontend_models": DeclaredFrontend,
    "roles": DeclaredRole,
    "principals": DeclaredPrincipal,
}
_HEADER = """\
# Configuration of FastLLM: providers, models, pools, frontend models with their rules, roles and principals.
# `fastllm apply -f FILE --dry-run` shows what would change, without `--dry-run` it is done. No secret is in
# here: where one is needed, the environment variable (`env`) or file (`file`) is named that holds it.
"""


class Read(Struct, frozen=True):
    """A document whose shape is right, and where in its text each field stands."""

    document: Document
    lines: Lines


def read(text: str | bytes) -> Read:
    """Raises `Broken` with everything that is wrong with the shape."""
    value, lines = parse(text)
    if not isinstance(value, dict):
        raise Broken([lines.problem("", "a configuration file is a mapping that begins with `format: 1`")])
    problems: list[Problem] = []
    try:
        refuse_nul(value)
    except Invalid as error:
        problems.append(lines.problem(error.field or "", error.message))
    sections = {
        name: _section(name, value, lines, problems) for name in _SECTIONS if value.get(name) is not None
    }
    try:
        document = msgspec.convert(
            {name: entry for name, entry in value.items() if name not in sections}, Document
        )
    except msgspec.ValidationError as error:
        problems.insert(0, _problem(error, "", lines))
    if problems:
        raise Broken(problems)
    return Read(msgspec.structs.replace(document, **sections), lines)


def parse(text: str | bytes) -> tuple[Any, Lines]:
    """The value that a text says, and the lines of its paths. Raises `Broken`."""
    lines: dict[str, int] = {}
    events = yaml.parse(_checked(text), Loader=_Parser)
    try:
        value = _Builder(events, lines).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise Broken([Problem(f"not YAML: {error.problem or error.context}", line=_marked(mark))]) from None
    except yaml.YAMLError as error:
        raise Broken([Problem(f"not YAML: {getattr(error, 'reason', 'it cannot be read')}")]) from None
    return value, Lines(lines)


def write(document: Document) -> str:
    """The YAML of a document, which `read` reads as the same document."""
    style: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "default_flow_style": False}
    # No line is folded: a change of one value is a change of one line.
    body: str = yaml.dump(plain(document), Dumper=_Dumper, width=1_000_000, **style)
    return _HEADER + body


def plain(value: Any) -> Any:
    """Plain values, in the order of the fields, without what is as it would be anyway."""
    if isinstance(value, Struct):
        pairs = ((field, getattr(value, field.name)) for field in msgspec.structs.fields(value))
        return {
            field.name: plain(one) for field, one in pairs if one is not UNSET and not _is_default(field, one)
        }
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    return msgspec.to_builtins(value)


def _is_default(field: msgspec.structs.FieldInfo, value: Any) -> bool:
    if field.default_factory is not msgspec.NODEFAULT:
        return bool(value == field.default_factory())
    return field.default is not msgspec.NODEFAULT and bool(value == field.default)


def _checked(text: str | bytes) -> str:
    whole = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    if len(whole) > MAX_BYTES:
        raise Broken([Problem(f"it is larger than {MAX_BYTES // 1024 // 1024} MiB")])
    try:
        decoded = whole.decode()
    except UnicodeDecodeError as error:
        line = whole.count(b"\n", 0, error.start) + 1
        raise Broken([Problem("not UTF-8 text", line=line)]) from None
    decoded = decoded.removeprefix("\ufeff")
    # What YAML does not allow anywhere; the parser would name no line.
    if (bad := _FORBIDDEN.search(decoded)) is not None:
        line = decoded.count("\n", 0, bad.start()) + 1
        raise Broken([Problem(f"the character U+{ord(bad[0]):04X} is not allowed in YAML", line=line)])
    return decoded


_FORBIDDEN = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _section(name: str, value: dict[str, Any], lines: Lines, problems: list[Problem]) -> tuple[Any, ...]:
    """The entries of a section, each judged by itself, so that all that are wrong are found together."""
    entries = value[name]
    if not isinstance(entries, list):
        problems.append(lines.problem(name, "Expected a list"))
        return ()
    found = []
    for index, entry in enumerate(entries):
        try:
            found.append(msgspec.convert(entry, _SECTIONS[name]))
        except msgspec.ValidationError as error:
            problems.append(_problem(error, f"{name}[{index}]", lines))
    return tuple(found)


def _problem(error: msgspec.ValidationError, prefix: str, lines: Lines) -> Problem:
    refused = invalid(error)
    inner = refused.field or ""
    field = f"{prefix}.{inner}" if prefix and inner and not inner.startswith("[") else prefix + inner
    message = refused.message
    if message.startswith("Expected `str") and message.endswith(("got `int`", "got `float`", "got `bool`")):
        message += ": put it in quotes to make it text"
    return lines.problem(field, message)


class _Builder:
    """Events → value, noting the line of every path on the way."""

    def __init__(self, events: Iterator[Any], lines: dict[str, int]) -> None:
        self._events = events
        self._lines = lines

    def document(self) -> Any:
        next(self._events)  # the start of the stream
        if isinstance(next(self._events), yaml.StreamEndEvent):
            return None
        value = self._value(next(self._events), "", 0)
        next(self._events)  # the end of the document
        after = next(self._events)
        if not isinstance(after, yaml.StreamEndEvent):
            raise Broken([Problem("a second document begins here: a file is one", line=_line(after))])
        return value

    def _value(self, event: Any, path: str, depth: int) -> Any:
        self._lines.setdefault(path, _line(event))
        self._refuse(event, path, depth)
        if isinstance(event, yaml.ScalarEvent):
            return _scalar(event.value) if event.implicit[0] else event.value
        if isinstance(event, yaml.SequenceStartEvent):
            return self._list(path, depth)
        return self._mapping(path, depth)

    def _refuse(self, event: Any, path: str, depth: int) -> None:
        problem = None
        if isinstance(event, yaml.AliasEvent):
            problem = "aliases (`*name`) are not read here: write it out"
        elif event.anchor is not None:
            problem = "anchors (`&name`) are not read here: write it out"
        elif event.tag is not None:
            problem = "tags (`!name`) are not read here"
        elif depth > MAX_DEPTH:
            problem = "nested too deeply"
        if problem is not None:
            raise Broken([Problem(problem, path, _line(event))])

    def _list(self, path: str, depth: int) -> list[Any]:
        found: list[Any] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            found.append(self._value(event, f"{path}[{len(found)}]", depth + 1))
        return found

    def _mapping(self, path: str, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            self._refuse(event, path, depth)
            if not isinstance(event, yaml.ScalarEvent):
                raise Broken([Problem("a key must be text", path, _line(event))])
            key = str(event.value)
            inner = f"{path}.{key}" if path else key
            if key == "<<" and event.implicit[0]:
                raise Broken(
                    [Problem("merge keys (`<<`) are not read here: write it out", path, _line(event))]
                )
            if key in found:
                first = self._lines[inner]
                raise Broken([Problem(f"given twice: line {first} has it already", inner, _line(event))])
            self._lines[inner] = _line(event)
            found[key] = self._value(next(self._events), inner, depth + 1)
        return found


def _scalar(text: str) -> Any:
    """What a plain scalar is in the core schema."""
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > _MAX_DIGITS:
        return text
    if _INT.fullmatch(text):
        return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
    # Python writes infinity and not-a-number without YAML's dot.
    lowered = text.lower().replace(".inf", "inf").replace(".nan", "nan")
    return float(lowered) if _FLOAT.fullmatch(text) else text


def _marked(mark: Any) -> int | None:
    return None if mark is None else int(mark.line) + 1


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


_Parser: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_BaseDumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Dumper(_BaseDumper):  # type: ignore[misc]  # chosen at run time
    """Quotes what either YAML 1.1 or the core schema of 1.2 would take for something else than text."""


def _text(dumper: Any, value: str) -> Any:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)
_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(rf"^(?:{_INT.pattern})$"), [*"-+0123456789"]
)
_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(rf"^(?:{_FLOAT.pattern})$"), [*"-+.0123456789"]
)
