"""The OpenAPI 3.1 document, built from the very operations and Structs that answer requests."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import fastllm_shared
from fastllm_control.examples import EXAMPLES
from fastllm_control.failures import ErrorAnswer
from fastllm_control.operations import VERSION_HEADER, Operation
from fastllm_control.schemas import Schemas, without_null
from fastllm_control.security import SESSION_COOKIE

PERMISSION = "x-fastllm-permission"
"""Extension of every operation: the permission that it needs, or who it is for."""

_INTRODUCTION = """\
Everything that can be seen and set of a FastLLM gateway.

Callers prove who they are with a session (`POST /login`, then the cookie) or with an API key of scope
`admin` as `Authorization: Bearer …`, and need the permission that each operation names. The proxies have a
channel and a token of their own.

Bodies are JSON in UTF-8, whatever `Accept` says. An unknown field, a field given twice or a wrong value is
refused with 400, and nothing has changed then. In a PATCH, what is absent stays, and `null` clears. Every
refusal has the one shape `ErrorAnswer`; its `code` is for programs. A method that a path does not take is
405, and `Allow` names those it takes.

Where a path takes an id it takes the unique name as well; `/` in a name is written as it is, or as `%2F`.
Lists come in pages: `next` of an answer is the `after` of the following one.

A write that changes what proxies serve says in `X-FastLLM-Snapshot-Version` which version it made: a script
may wait until `GET /admin/fleet` shows that all replicas have reached it.
"""
_ERRORS: Mapping[int, tuple[str, str]] = {
    400: ("BadRequest", "Shape or values are wrong; `field` names what"),
    401: ("Unauthenticated", "Who is calling is not known"),
    403: ("Forbidden", "The caller may not do this"),
    404: ("NotFound", "There is nothing of this id or name"),
    405: ("MethodNotAllowed", "The path does not take this method; `Allow` names those it takes"),
    409: ("Conflict", "It contradicts what is there, or somebody else changed the same just now"),
    413: ("TooLarge", "The body is too large"),
    429: ("TooMany", "Too many attempts; wait as `Retry-After` says"),
    500: ("Defect", "A defect: the cause is in the log line with this request id"),
    503: ("Unavailable", "The database cannot be reached now: try again in a moment"),
}
_WITH_HEADERS: Mapping[int, dict[str, Any]] = {
    401: {"WWW-Authenticate": {"description": "`Bearer`", "schema": {"type": "string"}}},
    405: {"Allow": {"description": "The methods that the path takes", "schema": {"type": "string"}}},
    429: {"Retry-After": {"description": "How long to wait, seconds", "schema": {"type": "integer"}}},
}
_SECURITY: dict[str, list[dict[str, list[str]]]] = {
    "public": [],
    "proxy": [{"proxyToken": []}],
    "any_principal": [{"apiKey": []}, {"session": []}],
}
_NEEDS = {
    "public": "Asks nothing of the caller.",
    "proxy": "For the proxies: needs their token.",
    "any_principal": "Needs any API key that is valid, or a session.",
    "session": "Needs a session, or a key of scope `admin`, whatever it may do.",
}
_NAMELESS = frozenset({"backends", "keys", "rules", "sessions"})
"""What has no name: its paths take ids only."""

_REQUEST_ID = {"X-Request-Id": {"$ref": "#/components/headers/RequestId"}}
_VERSION = {VERSION_HEADER: {"$ref": "#/components/headers/SnapshotVersion"}}


def document(operations: Sequence[Operation]) -> dict[str, Any]:
    """The document as plain values."""
    inputs = [kind for one in operations for kind in (one.body, one.query) if kind is not None]
    outputs = [one.result for one in operations if one.result is not None]
    schemas = Schemas(inputs, [*outputs, ErrorAnswer])
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "FastLLM control plane",
            "version": fastllm_shared.__version__,
            "description": _INTRODUCTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": tag} for tag in sorted({_tag(operation.path) for operation in operations})],
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": {name: schemas.components[name] for name in _shown(schemas, operations)},
            "responses": _error_responses(),
            "headers": _headers(),
            "securitySchemes": _schemes(),
        },
    }


def _operation(operation: Operation, schemas: Schemas) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": _operation_id(operation),
        "summary": operation.summary,
        "description": _description(operation, schemas),
        "tags": [_tag(operation.path)],
        "security": _SECURITY.get(operation.requires, [{"session": []}, {"apiKey": []}]),
        PERMISSION: operation.requires,
        "parameters": [
            *_path_parameters(operation),
            *_query_parameters(operation, schemas),
            *_header_parameters(operation),
        ],
        "responses": _responses(operation, schemas),
    }
    if operation.body is not None:
        content: dict[str, Any] = {"schema": schemas.of(operation.body)}
        example = EXAMPLES.get(f"{operation.method} {operation.path}")
        if example is not None:
            content["example"] = example
        described["requestBody"] = {"required": True, "content": {"application/json": content}}
    return described


def _description(operation: Operation, schemas: Schemas) -> str:
    needs = _NEEDS.get(operation.requires, f"Needs the permission `{operation.requires}`.")
    parts = [operation.description]
    if operation.query is not None:
        parts.append(schemas.resolved(schemas.of(operation.query)).get("description", ""))
    if operation.body is not None and operation.max_body_bytes != 1 << 20:
        parts.append(f"The body may have {operation.max_body_bytes} bytes.")
    return "\n\n".join(part for part in (*parts, needs) if part)


def _responses(operation: Operation, schemas: Schemas) -> dict[str, Any]:
    success: dict[str, Any] = {"description": operation.summary, "headers": dict(_REQUEST_ID)}
    if operation.method != "GET":
        success["headers"] |= _VERSION
    for name, description in operation.response_headers.items():
        success["headers"][name] = {"description": description, "schema": {"type": "string"}}
    if operation.result is not None:
        success["content"] = {"application/json": {"schema": schemas.of(operation.result)}}
    else:
        success["content"] = {kind: _raw(kind) for kind in operation.media}
    also = {
        str(status): {"description": description, "headers": dict(_REQUEST_ID)}
        for status, description in operation.also.items()
    }
    failures = {
        str(status): {"$ref": f"#/components/responses/{_ERRORS[status][0]}"}
        for status in sorted(failures_of(operation))
    }
    return {str(operation.status): success, **also, **failures}


def failures_of(operation: Operation) -> set[int]:
    """Every status of an error that the operation can answer with."""
    statuses = {400, 500, *operation.errors}
    if operation.requires != "public":
        statuses |= {401, 403, 503}
    if "{" in operation.path:
        statuses.add(404)
    if operation.method != "GET":
        statuses |= {403, 413, 503}
        if operation.transaction:
            statuses.add(409)
    return statuses


def _raw(kind: str) -> dict[str, Any]:
    if kind == "application/json":
        return {"schema": {"type": "object"}}
    return {"schema": {"type": "string"}} if kind.startswith("text/") else {}


def _path_parameters(operation: Operation) -> list[dict[str, Any]]:
    found = []
    before = re.split(r"\{\w+\}", operation.path)
    for place, name in enumerate(re.findall(r"\{(\w+)\}", operation.path)):
        of = before[place].rstrip("/").rpartition("/")[2]
        if of in _NAMELESS:
            described = {"description": "An id", "schema": {"type": "string", "format": "uuid"}}
        elif name == "id":
            described = {
                "description": "An id, or the unique name; `/` in it may be written as `%2F`",
                "schema": {"type": "string", "minLength": 1},
            }
        else:
            described = {
                "description": f"As in the lists of {of}",
                "schema": {"type": "string", "minLength": 1},
            }
        found.append({"name": name, "in": "path", "required": True, **described})
    return found


def _query_parameters(operation: Operation, schemas: Schemas) -> list[dict[str, Any]]:
    if operation.query is None:
        return []
    described = schemas.resolved(schemas.of(operation.query))
    required = set(described.get("required", ()))
    found = []
    for name, schema in described.get("properties", {}).items():
        parameter = {"name": name, "in": "query", "required": name in required}
        if "description" in schema:
            parameter["description"] = schema["description"]
        bare = {key: value for key, value in schema.items() if key != "description"}
        found.append({**parameter, "schema": without_null(bare)})
    return found


def _header_parameters(operation: Operation) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "header", "required": False, "description": text, "schema": {"type": "string"}}
        for name, text in operation.request_headers.items()
    ]


def _shown(schemas: Schemas, operations: Sequence[Operation]) -> list[str]:
    """All components but those of queries, which stand in the operations as parameters."""
    queries = {
        schemas.of(one.query)["$ref"].rpartition("/")[2] for one in operations if one.query is not None
    }
    return [name for name in schemas.components if name not in queries]


def _operation_id(operation: Operation) -> str:
    words = re.sub(r"[^A-Za-z0-9]+", " ", operation.path.removeprefix("/admin")).split()
    return "_".join([operation.method.lower(), *words])


def _tag(path: str) -> str:
    parts = path.strip("/").split("/")
    return parts[1] if parts[0] == "admin" and len(parts) > 1 else parts[0]


def _error_responses() -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorAnswer"}}}
    return {
        name: {
            "description": description,
            "headers": {**_REQUEST_ID, **_WITH_HEADERS.get(status, {})},
            "content": content,
        }
        for status, (name, description) in _ERRORS.items()
    }


def _headers() -> dict[str, Any]:
    return {
        "RequestId": {
            "description": "Names the request in the logs; the caller's own `X-Request-Id`, if it sent one",
            "schema": {"type": "string"},
        },
        "SnapshotVersion": {
            "description": "The version that this change made, if it changed what proxies serve",
            "schema": {"type": "integer"},
        },
    }


def _schemes() -> dict[str, Any]:
    return {
        "session": {
            "type": "apiKey",
            "in": "cookie",
            "name": SESSION_COOKIE,
            "description": "What `POST /login` answers with",
        },
        "apiKey": {"type": "http", "scheme": "bearer", "description": "An API key of scope `admin`"},
        "proxyToken": {"type": "http", "scheme": "bearer", "description": "FASTLLM_PROXY_TOKEN"},
    }
