"""The OpenAPI document says what the operations do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fastllm_control.api.everything import OPERATIONS
from fastllm_control.openapi import PERMISSION, document
from fastllm_control.operations import VERSION_HEADER

DOCUMENT = document(OPERATIONS)


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def described() -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def test_every_operation_is_in_it_once() -> None:
    assert sorted(name for name, _ in described()) == sorted(f"{op.method} {op.path}" for op in OPERATIONS)
    identities = [operation["operationId"] for _, operation in described()]
    assert len(set(identities)) == len(identities)


def test_every_reference_leads_somewhere() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    for reference in references(DOCUMENT):
        assert reference.rpartition("/")[2] in schemas
    assert not [name for name in schemas if "." in name]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda op: f"{op.method} {op.path}")
def test_each_is_described(operation: Any) -> None:
    found = DOCUMENT["paths"][operation.path][operation.method.lower()]
    assert found[PERMISSION] == operation.requires
    assert found["summary"]
    assert str(operation.status) in found["responses"]
    assert {"400", "500", "503"} <= set(found["responses"])
    assert ({"401", "403"} <= set(found["responses"])) == (operation.requires != "public")
    assert ("requestBody" in found) == (operation.body is not None)
    placed = [entry["name"] for entry in found["parameters"] if entry["in"] == "path"]
    assert [f"{{{name}}}" in operation.path for name in placed] == [True] * len(placed)
    assert ("{" in operation.path) == bool(placed)
    headers = found["responses"][str(operation.status)].get("headers", {})
    assert (VERSION_HEADER in headers) == (operation.method != "GET")
    assert bool(found["security"]) == (operation.requires != "public")


def test_query_parameters_are_the_fields_of_the_struct() -> None:
    found = DOCUMENT["paths"]["/admin/keys"]["get"]["parameters"]
    assert {entry["name"] for entry in found} == {"limit", "after", "principal", "disabled"}
    limit = next(entry for entry in found if entry["name"] == "limit")
    assert (limit["required"], limit["schema"]["maximum"]) == (False, 1000)


def test_strict_bodies_say_so() -> None:
    assert DOCUMENT["components"]["schemas"]["KeyCreate"]["additionalProperties"] is False
