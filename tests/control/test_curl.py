"""Commands that can be pasted."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from fastllm_control.api.everything import OPERATIONS
from fastllm_control.curl import command, sample
from fastllm_control.openapi import document

DOCUMENT = document(OPERATIONS)
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]


def words(path: str, method: str) -> list[str]:
    found = command(path, method, DOCUMENT["paths"][path][method], SCHEMAS)
    return [word for word in shlex.split(found) if word.strip()]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: f"{one.method} {one.path}")
def test_each_is_one_command_of_a_shell(operation: Any) -> None:
    found = words(operation.path, operation.method.lower())
    assert found[0] == "curl"
    assert any(word.startswith("$FASTLLM/") for word in found)
    assert "{" not in next(word for word in found if word.startswith("$FASTLLM/"))
    if "-d" in found:
        json.loads(found[found.index("-d") + 1])
    assert ("-d" in found) == (operation.body is not None)


def test_who_calls_is_proved_as_the_operation_wants() -> None:
    assert "Authorization: Bearer $FASTLLM_KEY" in words("/admin/keys", "get")
    assert "Authorization: Bearer $FASTLLM_PROXY_TOKEN" in words("/snapshot", "get")
    assert not [word for word in words("/healthz", "get") if "Authorization" in word]
    assert "cookies.txt" in words("/login", "post")


def test_samples_hold_what_is_required_and_end() -> None:
    schemas = {
        "Tree": {
            "type": "object",
            "required": ["name", "left", "count", "kind", "on", "ids"],
            "properties": {
                "name": {"type": "string"},
                "left": {"anyOf": [{"$ref": "#/components/schemas/Tree"}, {"type": "null"}]},
                "count": {"type": "integer", "minimum": 3},
                "kind": {"enum": ["a", "b"]},
                "on": {"type": "boolean"},
                "ids": {"type": "array"},
                "not_needed": {"type": "string"},
            },
        }
    }
    found = sample({"$ref": "#/components/schemas/Tree"}, schemas)
    assert (found["count"], found["kind"], found["on"], found["ids"]) == (3, "a", True, [])
    assert "not_needed" not in found
    assert found["left"]["left"]["left"]["left"]["left"] == {}
