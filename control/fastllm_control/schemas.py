"""JSON schemas of what goes in and out, out of the very Structs that decode and encode it.

msgspec writes them; this adds what it cannot know: what each field means, and which fields are always in an
answer. It also writes patterns so that engines without look-ahead read them alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, get_origin

import msgspec

from fastllm_control.glossary import GLOSSARY

REFERENCE = "#/components/schemas/{name}"
_PYTHONS_END = r"$(?!\n)"
"""Python's `$` also matches before a last newline; that of JSON schemas does not."""


class Schemas:
    """The schemas of some types. `inputs` are sent by callers, `outputs` are what they get."""

    def __init__(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        types = [*inputs, *outputs]
        given, components = msgspec.json.schema_components(types, ref_template=REFERENCE)
        self.components: dict[str, dict[str, Any]] = dict(sorted(components.items()))
        self._by_type = list(zip(types, given, strict=True))
        sent = set(self._reached(given[: len(inputs)]))
        omitting = _omitting(outputs)
        for name, schema in self.components.items():
            if name not in sent and schema.get("title", "").partition("[")[0] not in omitting:
                _require_all(schema)
            for field, inner in schema.get("properties", {}).items():
                _describe(schema["properties"], name, field, inner)
        for part in _parts(self.components):
            _portable(part)

    def of(self, kind: Any) -> dict[str, Any]:
        """The schema of one of the types: a reference, or what it is itself."""
        return next(schema for known, schema in self._by_type if known is kind or known == kind)

    def resolved(self, schema: dict[str, Any]) -> dict[str, Any]:
        """The component that a reference leads to; anything else is itself."""
        return self.components[_name_of(schema["$ref"])] if "$ref" in schema else schema

    def _reached(self, roots: Sequence[Any]) -> Iterator[str]:
        """The names of all components that the roots lead to."""
        waiting, seen = list(roots), set[str]()
        while waiting:
            for part in _parts(waiting.pop()):
                name = _name_of(part["$ref"]) if isinstance(part.get("$ref"), str) else None
                if name is not None and name not in seen:
                    seen.add(name)
                    waiting.append(self.components[name])
                    yield name


def without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a query parameter, in which `null` only means that it is absent."""
    if "anyOf" not in schema:
        return schema
    options = [option for option in schema["anyOf"] if option.get("type") != "null"]
    rest = {name: value for name, value in schema.items() if name not in ("anyOf", "default")}
    if schema.get("default") is not None:
        rest["default"] = schema["default"]
    return {**rest, **options[0]} if len(options) == 1 else {**rest, "anyOf": options}


def _describe(properties: dict[str, Any], name: str, field: str, schema: dict[str, Any]) -> None:
    note = GLOSSARY.get(f"{name}.{field}") or GLOSSARY.get(field)
    if note is not None and "description" not in schema:
        properties[field] = {"description": note, **schema}


def _require_all(schema: dict[str, Any]) -> None:
    if schema.get("properties"):
        schema["required"] = list(schema["properties"])


def _portable(schema: dict[str, Any]) -> None:
    if isinstance(schema.get("pattern"), str):
        schema["pattern"] = schema["pattern"].replace(_PYTHONS_END, "$")
    values = schema.get("enum")
    if isinstance(values, list) and "type" not in schema and all(isinstance(value, str) for value in values):
        schema["type"] = "string"


def _parts(value: Any) -> Iterator[dict[str, Any]]:
    """Every mapping inside a value, itself included."""
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from _parts(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _parts(inner)


def _omitting(types: Iterable[Any]) -> set[str]:
    """The names of the Structs in these types that leave out what has its default."""
    found: set[str] = set()
    waiting = list(msgspec.inspect.multi_type_info(types))
    seen: set[type] = set()
    while waiting:
        kind = waiting.pop()
        if isinstance(kind, msgspec.inspect.StructType):
            if kind.cls in seen:
                continue
            seen.add(kind.cls)
            waiting += [field.type for field in kind.fields]
            plain: type[msgspec.Struct] = get_origin(kind.cls) or kind.cls
            if plain.__struct_config__.omit_defaults:
                found.add(plain.__name__)
        else:
            waiting += _inside(kind)
    return found


def _inside(kind: msgspec.inspect.Type) -> list[msgspec.inspect.Type]:
    held = [getattr(kind, name, None) for name in ("type", "item_type", "key_type", "value_type")]
    several: Mapping[str, Any] = {name: getattr(kind, name, ()) for name in ("types", "item_types")}
    found = [one for one in held if isinstance(one, msgspec.inspect.Type)]
    return found + [one for many in several.values() for one in many]


def _name_of(reference: str) -> str:
    return reference.rpartition("/")[2]
