"""What the API is asked about when requests are made from its document: things that exist.

Made-up ids and names would mostly meet 404. So the document is given words for things (`widen`), which stand
beside what it says anyway; the things are made (`furnish`), and their ids put in place of the words.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastllm_shared.ids import uuid7_text
from tests.fakes.control_plane import PASSWORD, ControlPlane

NOWHERE = "http://127.0.0.1:9/v1"
"""Refuses every connection at once."""

COUNT = 3
_NAMED: dict[str, dict[str, str]] = {
    "principals": {"kind": "user"},
    "roles": {},
    "providers": {"api_base": NOWHERE},
    "provider-models": {},
    "pools": {},
    "frontend-models": {},
}
_NAMELESS = ("keys", "backends", "rules", "sessions")
_KEPT = {
    "principals": ("principal_id", "owner", "principal"),
    "roles": ("role",),
    "providers": ("provider",),
    "provider-models": ("target", "provider_model"),
    "frontend-models": ("frontend_model", "jump"),
}
"""By kind, the fields of bodies that refer to one by name."""


def widen(document: dict[str, Any]) -> dict[str, Any]:
    """The document with words for what there is, in paths and bodies. It is changed."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            for parameter in operation["parameters"]:
                kind = path.partition("/{")[0].rpartition("/")[2]
                if parameter["in"] == "path" and kind in (*_NAMED, *_NAMELESS):
                    # What is deleted is not missed elsewhere.
                    purpose = "spare" if method == "delete" and path.endswith("}") else "used"
                    words = [f"{purpose}-{kind}-{number}" for number in range(COUNT)]
                    parameter["schema"] = _or(words, parameter["schema"])
    for schema in document["components"]["schemas"].values():
        properties = schema.get("properties", {})
        if schema.get("additionalProperties") is False:
            for kind, fields in _KEPT.items():
                for field in set(fields) & properties.keys():
                    properties[field] = _or([f"kept-{kind}"], properties[field])
            if "api_base" in properties:
                properties["api_base"] = _or([NOWHERE], properties["api_base"])
        if schema.get("title") == "UsageEvent":
            properties["id"] = _or([uuid7_text() for _ in range(COUNT)], properties["id"])
    return document


def _or(words: list[str], schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [{"type": "string", "enum": words}, schema]}


async def furnish(plane: ControlPlane) -> dict[str, str]:
    """Make the things; returns the id for each word. What bodies refer to is found by its name."""
    words: dict[str, str] = {}
    for kind, named in _NAMED.items():
        for name in (f"kept-{kind}", *_words(kind)):
            words[name] = await _made(plane, f"/admin/{kind}?force=true", {**named, "name": name})
    for number, word in enumerate(_words("keys")):
        body = {"principal_id": "kept-principals", "name": word, "scope": "admin" if number % 2 else "invoke"}
        words[word] = await _made(plane, "/admin/keys", body)
    for word in _words("backends"):
        body = {"provider": "kept-providers", "upstream_model": word}
        words[word] = await _made(plane, "/admin/provider-models/kept-provider-models/backends", body)
    for word in _words("rules"):
        rule: dict[str, Any] = {"tag": word, "targets": [{"target": "kept-provider-models"}]}
        words[word] = await _made(plane, "/admin/frontend-models/kept-frontend-models/rules", rule)
    for _ in _words("sessions"):
        await plane.log_in("root", PASSWORD)
    sessions = [str(row["id"]) for row in (await plane.call("GET", "/admin/sessions")).rows]
    words |= dict(zip(_words("sessions"), sessions, strict=True))
    return words


def _words(kind: str) -> Iterator[str]:
    for purpose in ("used", "spare"):
        for number in range(COUNT):
            yield f"{purpose}-{kind}-{number}"


async def _made(plane: ControlPlane, path: str, body: dict[str, Any]) -> str:
    path = path if "providers" in path and "models" not in path else path.removesuffix("?force=true")
    answer = await plane.call("POST", path, body)
    assert answer.status == 201, answer.body
    return str(answer.json["id"])
