"""Wrong input for an operation, generated from its schema in the OpenAPI document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from fastllm_control.api.everything import OPERATIONS
from fastllm_control.openapi import document
from fastllm_control.operations import Operation

CANARY = "canary-4711"
DEEP = 100_000
_DOCUMENT: dict[str, Any] = document(OPERATIONS)
_SCHEMAS: dict[str, Any] = _DOCUMENT["components"]["schemas"]
_VALUES: dict[str, Any] = {
    "string": CANARY,
    "integer": 7,
    "number": 7.5,
    "boolean": True,
    "null": None,
    "array": [[CANARY]],
    "object": {"inner-canary": {"deep": [CANARY]}},
}


class Case(msgspec.Struct, frozen=True):
    """A body or query to send. `field` is what the refusal must name; `None`: there is none to name.

    `sure` cases must be refused with 400; the others are odd but may be right, and must not be a 5xx.
    """

    why: str
    sent: bytes
    field: str | None = None
    sure: bool = True


def body_schema(operation: Operation) -> dict[str, Any] | None:
    """The schema of the body, references resolved at the top; `None` without a body."""
    found = _DOCUMENT["paths"][operation.path][operation.method.lower()].get("requestBody")
    return None if found is None else _resolved(found["content"]["application/json"]["schema"])


def query_schemas(operation: Operation) -> dict[str, dict[str, Any]]:
    """The schema of each query parameter."""
    described = _DOCUMENT["paths"][operation.path][operation.method.lower()]["parameters"]
    return {entry["name"]: entry["schema"] for entry in described if entry["in"] == "query"}


def sample_body(operation: Operation) -> bytes:
    """A body of the right shape, with nothing but what is required."""
    schema = body_schema(operation)
    return b"" if schema is None else msgspec.json.encode(_sample(schema))


def whole_bodies(operation: Operation) -> Iterator[Case]:
    """Bodies that are wrong as a whole."""
    schema = body_schema(operation)
    if schema is None:
        yield Case("a body where none is taken", b'{"x":1}')
        return
    for why, sent in (
        ("empty", b""),
        ("blank", b" \n"),
        ("cut off", b'{"name": "x'),
        ("no JSON", b"name=x"),
        ("bad UTF-8", b'{"\xff": 1}'),
        ("lone surrogate", b'{"\\ud800": 1}'),
        ("trailing", sample_body(operation) + b" x"),
        ("deep array", b"[" * DEEP),
        ("deep object", b'{"a":' * DEEP),
        ("constant", b"NaN"),
    ):
        yield Case(why, sent)
    for kind in set(_VALUES) - _kinds(schema):
        yield Case(f"{kind} for a body", msgspec.json.encode(_VALUES[kind]))
    if schema.get("type") == "object":
        sample = _sample(schema)
        yield Case("unknown field", msgspec.json.encode({**sample, "no_such": 1}), "no_such")


def field_bodies(operation: Operation) -> Iterator[Case]:
    """Bodies in which one field is wrong, missing, huge or odd."""
    schema = body_schema(operation) or {}
    if schema.get("type") != "object":
        return
    sample = _sample(schema)
    for name in schema.get("required", ()):
        without = {key: value for key, value in sample.items() if key != name}
        yield Case(f"without {name}", msgspec.json.encode(without), name)
    for name, inner in schema["properties"].items():
        for kind in sorted(set(_VALUES) - _kinds(inner)):
            yield Case(f"{kind} for {name}", _with(sample, name, _VALUES[kind]), name)
        yield from _odd_values(sample, name, inner)


def queries(operation: Operation) -> Iterator[Case]:
    """Query strings that are wrong."""
    yield Case("unknown parameter", b"no_such=1", "no_such")
    yield Case("bad UTF-8", b"%ff=%ff")
    for name, schema in query_schemas(operation).items():
        kinds = _kinds(schema)
        yield Case(f"{name} twice", f"{name}=1&{name}=2".encode(), name)
        yield Case(f"NUL in {name}", f"{name}=%00".encode(), name)
        yield Case(f"bad UTF-8 in {name}", f"{name}=%ff".encode())
        yield Case(f"huge {name}", f"{name}={'9' * 9000}".encode(), name, sure=False)
        if "string" not in kinds:
            for text in ("x", "", "1e999", "-1.5.2", "%F0%9F%A6%99"):
                yield Case(f"{name}={text}", f"{name}={text}".encode(), name)


def _odd_values(sample: dict[str, Any], name: str, schema: dict[str, Any]) -> Iterator[Case]:
    kinds = _kinds(schema)
    deep = b"[" * DEEP + b"]" * DEEP
    yield Case(f"deep {name}", _with(sample, name, msgspec.Raw(deep)), None if "array" in kinds else name)
    if "string" in kinds:
        yield Case(f"NUL in {name}", _with(sample, name, "a\0b"), name)
        for text in ("", " ", "x" * 200_000, "\u202e", "99999-13-99", "🦙" * 300):
            yield Case(f"{text[:8]!r} for {name}", _with(sample, name, text), name, sure=False)
    if kinds & {"integer", "number"}:
        for number in (-1, 0, 2**31, 2**63, 2**64, -(2**63), 10**30):
            yield Case(f"{number} for {name}", _with(sample, name, number), name, sure=False)
        for raw in (b"1e400", b"-0.0", b"1e30"):
            yield Case(f"{raw!r} for {name}", _with(sample, name, msgspec.Raw(raw)), name, sure=False)
    if "array" in kinds:
        arrays: tuple[list[Any], ...] = ([], [None], [[]], [{}], [1] * 10_000, ["a\0b"])
        for array in arrays:
            yield Case(f"array for {name}", _with(sample, name, array), name, sure=False)
    if "object" in kinds:
        objects: tuple[dict[str, Any], ...] = ({}, {"a\0b": "a\0b"}, {"": None}, {"x": {"y": []}})
        for mapping in objects:
            yield Case(f"object for {name}", _with(sample, name, mapping), name, sure=False)


def _with(sample: dict[str, Any], name: str, value: Any) -> bytes:
    return msgspec.json.encode({**sample, name: value})


def _sample(schema: dict[str, Any]) -> Any:
    schema = _resolved(schema)
    if "anyOf" in schema:
        return _sample(schema["anyOf"][0])
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type")
    if kind == "object":
        return {name: _sample(schema["properties"][name]) for name in schema.get("required", ())}
    if kind == "array":
        return []
    if kind == "string":
        return {"uuid": "01a22ded-a19a-7678-9986-a657b8f8485a"}.get(schema.get("format", ""), "sample-text")
    return {"integer": schema.get("minimum", 1), "number": 1.5, "boolean": False}.get(str(kind))


def _kinds(schema: dict[str, Any]) -> set[str]:
    """The JSON types that a schema lets pass; everything, when it says nothing."""
    schema = _resolved(schema)
    if "anyOf" in schema:
        return set().union(*(_kinds(option) for option in schema["anyOf"]))
    if "enum" in schema:
        return {"boolean" if isinstance(value, bool) else "string" for value in schema["enum"]}
    kind = schema.get("type")
    if kind is None:
        return set(_VALUES)
    # JSON has one kind of number: 7 passes for 7.0, and 7.0 for 7.
    return {"integer", "number"} if kind == "number" else {kind}


def _resolved(schema: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = _SCHEMAS[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    return found
