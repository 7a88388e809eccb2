"""The OpenAPI 3.1 document, built from the very operations and Structs that answer requests."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

import fastllm_shared
from fastllm_control.failures import ErrorAnswer
from fastllm_control.operations import VERSION_HEADER, Operation
from fastllm_control.security import SESSION_COOKIE

PERMISSION = "x-fastllm-permission"
"""Extension of every operation: the permission that it needs, or who it is for."""

_REFERENCE = "#/components/schemas/{name}"
_ERRORS = {
    400: "Shape or values are wrong; `field` names what",
    401: "Who is calling is not known",
    403: "The caller may not do this",
    404: "There is nothing of this id or name",
    409: "It contradicts what is there",
    413: "The body is too large",
    429: "Too many attempts; wait as `Retry-After` says",
    500: "A defect: the cause is in the log line with this request id",
    503: "The database cannot be reached now",
}
_SECURITY: dict[str, list[dict[str, list[str]]]] = {
    "public": [],
    "proxy": [{"proxyToken": []}],
    "any_principal": [{"apiKey": []}, {"session": []}],
}


def document(operations: Sequence[Operation]) -> dict[str, Any]:
    """The document as plain values."""
    types = [kind for operation in operations for kind in _types(operation)]
    _, schemas = msgspec.json.schema_components([*types, ErrorAnswer], ref_template=_REFERENCE)
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "FastLLM control plane", "version": fastllm_shared.__version__},
        "paths": dict(sorted(paths.items())),
        "components": {"schemas": schemas, "securitySchemes": _schemes()},
    }


def _operation(operation: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": _operation_id(operation),
        "summary": operation.summary,
        "tags": [_tag(operation.path)],
        "security": _SECURITY.get(operation.requires, [{"session": []}, {"apiKey": []}]),
        PERMISSION: operation.requires,
        "parameters": [*_path_parameters(operation), *_query_parameters(operation, schemas)],
        "responses": _responses(operation),
    }
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": _json(_schema(operation.body))}
    return described


def _responses(operation: Operation) -> dict[str, Any]:
    success: dict[str, Any] = {"description": operation.summary}
    if operation.result is not None:
        success["content"] = _json(_schema(operation.result))
    if operation.method != "GET":
        success["headers"] = {
            VERSION_HEADER: {
                "description": "The version that this change made, if it changed what proxies serve",
                "schema": {"type": "integer"},
            }
        }
    public = operation.requires == "public"
    statuses = {400, 500, 503, *operation.errors} | (set() if public else {401, 403})
    if operation.body is not None:
        statuses.add(413)
    error = _json({"$ref": _REFERENCE.format(name="ErrorAnswer")})
    failures = {
        str(status): {"description": _ERRORS.get(status, "Refused"), "content": error}
        for status in sorted(statuses)
    }
    return {str(operation.status): success, **failures}


def _path_parameters(operation: Operation) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": "An id, or the unique name where there is one; `/` may be written as `%2F`",
            "schema": {"type": "string"},
        }
        for name in re.findall(r"\{(\w+)\}", operation.path)
    ]


def _query_parameters(operation: Operation, schemas: dict[str, Any]) -> list[dict[str, Any]]:
    if operation.query is None:
        return []
    described = schemas[_schema(operation.query)["$ref"].rpartition("/")[2]]
    required = set(described.get("required", ()))
    return [
        {"name": name, "in": "query", "required": name in required, "schema": schema}
        for name, schema in described["properties"].items()
    ]


def _types(operation: Operation) -> list[Any]:
    return [kind for kind in (operation.body, operation.query, operation.result) if kind is not None]


def _schema(kind: Any) -> dict[str, Any]:
    (schema,), _ = msgspec.json.schema_components([kind], ref_template=_REFERENCE)
    return schema


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _operation_id(operation: Operation) -> str:
    words = re.sub(r"[^A-Za-z0-9]+", " ", operation.path.removeprefix("/admin")).split()
    return "_".join([operation.method.lower(), *words])


def _tag(path: str) -> str:
    parts = path.strip("/").split("/")
    return parts[1] if parts[0] == "admin" and len(parts) > 1 else parts[0]


def _schemes() -> dict[str, Any]:
    return {
        "session": {"type": "apiKey", "in": "cookie", "name": SESSION_COOKIE},
        "apiKey": {"type": "http", "scheme": "bearer", "description": "An API key of scope `admin`"},
        "proxyToken": {"type": "http", "scheme": "bearer", "description": "FASTLLM_PROXY_TOKEN"},
    }
