"""The OpenAPI document says what the operations do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from schemathesis.specs.openapi.definitions import OPENAPI_31_VALIDATOR

from fastllm_control.api.everything import OPERATIONS
from fastllm_control.openapi import PERMISSION, document, failures_of
from fastllm_control.operations import VERSION_HEADER
from fastllm_shared.snapshot import SNAPSHOT_CONTENT_TYPE

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


def test_every_reference_leads_somewhere_and_every_schema_is_used() -> None:
    found = set(references(DOCUMENT))
    for reference in found:
        kind, name = reference.removeprefix("#/components/").split("/")
        assert name in DOCUMENT["components"][kind]
    schemas = DOCUMENT["components"]["schemas"]
    assert {f"#/components/schemas/{name}" for name in schemas} <= found
    assert not [name for name in schemas if "." in name]


def test_it_is_valid_openapi() -> None:
    assert not [
        f"{fault.instance_path}: {fault.message}" for fault in OPENAPI_31_VALIDATOR.iter_errors(DOCUMENT)
    ]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda op: f"{op.method} {op.path}")
def test_each_is_described(operation: Any) -> None:
    found = DOCUMENT["paths"][operation.path][operation.method.lower()]
    assert found[PERMISSION] == operation.requires
    assert found["summary"]
    assert str(operation.status) in found["responses"]
    assert {str(status) for status in failures_of(operation)} <= set(found["responses"])
    assert found["description"]
    assert ("requestBody" in found) == (operation.body is not None)
    placed = [entry["name"] for entry in found["parameters"] if entry["in"] == "path"]
    assert [f"{{{name}}}" in operation.path for name in placed] == [True] * len(placed)
    assert ("{" in operation.path) == bool(placed)
    headers = found["responses"][str(operation.status)].get("headers", {})
    assert (VERSION_HEADER in headers) == (operation.method != "GET")
    assert bool(found["security"]) == (operation.requires != "public")


def test_query_parameters_are_the_fields_of_the_struct() -> None:
    found = DOCUMENT["paths"]["/admin/keys"]["get"]["parameters"]
    named = {entry["name"] for entry in found}
    assert named == {"limit", "after", "principal", "disabled", "scope", "prefix"}
    limit = next(entry for entry in found if entry["name"] == "limit")
    assert (limit["required"], limit["schema"]["maximum"]) == (False, 1000)
    disabled = next(entry for entry in found if entry["name"] == "disabled")
    assert disabled["schema"] == {"type": "boolean"}


def errors_of(method: str, path: str) -> set[int]:
    return {int(status) for status in DOCUMENT["paths"][path][method]["responses"] if int(status) >= 400}


def test_errors_are_those_that_can_be() -> None:
    assert errors_of("get", "/healthz") == {400, 500}
    assert errors_of("get", "/readyz") == {400, 500, 503}
    assert errors_of("get", "/admin/keys") == {400, 401, 403, 500, 503}
    assert errors_of("get", "/admin/keys/{id}") == {400, 401, 403, 404, 500, 503}
    assert errors_of("patch", "/admin/roles/{id}") == {400, 401, 403, 404, 409, 413, 500, 503}
    assert errors_of("post", "/login") == {400, 401, 403, 413, 429, 500, 503}
    assert "Retry-After" in DOCUMENT["components"]["responses"]["TooMany"]["headers"]


def test_other_content_types_and_statuses_are_said() -> None:
    answers = DOCUMENT["paths"]["/snapshot"]["get"]["responses"]
    assert list(answers["200"]["content"]) == [SNAPSHOT_CONTENT_TYPE]
    assert "content" not in answers["304"]
    assert list(DOCUMENT["paths"]["/metrics"]["get"]["responses"]["200"]["content"]) == ["text/plain"]


def test_paths_say_whether_they_take_names() -> None:
    (by_name,) = DOCUMENT["paths"]["/admin/providers/{id}"]["get"]["parameters"]
    assert "%2F" in by_name["description"]
    (by_id,) = DOCUMENT["paths"]["/admin/keys/{id}"]["get"]["parameters"]
    assert by_id["schema"]["format"] == "uuid"


def test_strict_bodies_say_so() -> None:
    assert DOCUMENT["components"]["schemas"]["KeyCreate"]["additionalProperties"] is False
