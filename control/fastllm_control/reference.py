"""`/docs`: the OpenAPI document as a page that loads nothing from anywhere; and both, ready to send."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from html import escape
from typing import Any

import msgspec

from fastllm_control import openapi
from fastllm_control.curl import command
from fastllm_control.operations import Operation
from fastllm_control.reference_assets import SCRIPT, STYLE

_DEEPEST = 4


class Made(msgspec.Struct, frozen=True):
    """A body that stays as it is for as long as the process lives."""

    body: bytes
    etag: str


class Reference:
    """The API as a document and as a page, each made once, when it is first asked for."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._operations = operations

    @cached_property
    def document(self) -> Made:
        return _made(msgspec.json.encode(openapi.document(self._operations)))

    @cached_property
    def page(self) -> Made:
        return _made(page(openapi.document(self._operations)).encode())


def page(document: dict[str, Any]) -> str:
    """The whole page."""
    schemas = document["components"]["schemas"]
    by_tag: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            by_tag.setdefault(operation["tags"][0], []).append(_operation(path, method, operation, schemas))
    sections = [
        f'<section id="{escape(tag)}"><h2>{escape(tag)}</h2>{"".join(entries)}</section>'
        for tag, entries in sorted(by_tag.items())
    ]
    title = f"{document['info']['title']} {document['info']['version']}"
    links = "".join(f'<a href="#{escape(tag)}">{escape(tag)}</a> ' for tag in sorted(by_tag))
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style><h1>{escape(title)}</h1>"
        f'<p class="introduction">{_prose(document["info"]["description"])}</p>'
        '<p>The same for programs: <a href="/openapi.json">/openapi.json</a>. In the commands'
        " <code>$FASTLLM</code> is this control plane’s address, <code>$FASTLLM_KEY</code> an admin key.</p>"
        '<header><input id="search" type="search" placeholder="Search" aria-label="Search">'
        ' <button id="all" type="button">Open or close all</button> <span id="found" class="quiet"></span>'
        f"</header><nav>{links}</nav>{''.join(sections)}<script>{SCRIPT}</script></html>"
    )


def _operation(path: str, method: str, operation: dict[str, Any], schemas: dict[str, Any]) -> str:
    parts = [f"<p>{_prose(operation['summary'])}.</p>"]
    parts += [f"<p>{_prose(text)}</p>" for text in operation["description"].split("\n\n")]
    for place in ("path", "query", "header"):
        given = [one for one in operation["parameters"] if one["in"] == place]
        rows = [
            _row(one["name"], one["schema"], one["required"], one.get("description", "")) for one in given
        ]
        parts.append(_table(f"In the {place}", rows))
    if "requestBody" in operation:
        content = operation["requestBody"]["content"]
        parts += [_body("Body", kind, one, schemas) for kind, one in content.items()]
    for status, response in operation["responses"].items():
        parts += [
            _body(f"Answer {status}", kind, one, schemas) for kind, one in response.get("content", {}).items()
        ]
    parts.append(f"<pre>{escape(command(path, method, operation, schemas))}</pre>")
    refusals = ", ".join(status for status in operation["responses"] if not status.startswith("2"))
    parts.append(f'<p class="quiet">May also answer {refusals}</p>')
    shown = f'<span class="method">{method.upper()}</span> <code>{escape(path)}</code>'
    head = f"<summary>{shown} {_prose(operation['summary'])}</summary>"
    return f'<details id="{escape(operation["operationId"])}">{head}{"".join(parts)}</details>'


def _body(title: str, kind: str, content: dict[str, Any], schemas: dict[str, Any]) -> str:
    if kind != "application/json":
        return f"<p>{escape(title)}: <code>{escape(kind)}</code></p>"
    schema, name = _resolved(content.get("schema", {}), schemas)
    note = f'<p class="quiet">{_prose(schema["description"])}</p>' if "description" in schema else ""
    return _table(title, list(_rows(schema, schemas, "", (name,)))) + note


def _rows(
    schema: dict[str, Any], schemas: dict[str, Any], prefix: str, above: tuple[str, ...]
) -> Iterator[str]:
    """A row for each field, those of objects inside included: `targets[].weight`."""
    required = set(schema.get("required", ()))
    for field, inner in schema.get("properties", {}).items():
        path = f"{prefix}{field}"
        yield _row(path, inner, field in required, inner.get("description", ""))
        for suffix, option in _objects(inner):
            found, name = _resolved(option, schemas)
            if name not in above and len(above) < _DEEPEST:
                yield from _rows(found, schemas, f"{path}{suffix}.", (*above, name))


def _objects(schema: dict[str, Any], suffix: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """The references in a field's schema, and how one gets from the field to each."""
    if "$ref" in schema:
        yield suffix, schema
    for option in schema.get("anyOf", ()):
        yield from _objects(option, suffix)
    if isinstance(schema.get("items"), dict):
        yield from _objects(schema["items"], f"{suffix}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from _objects(schema["additionalProperties"], f"{suffix}.*")


def _row(name: str, schema: dict[str, Any], required: bool, description: str) -> str:
    notes = [_prose(description)] if description else []
    notes += [f'<span class="quiet">{escape(text)}</span>' for text in _bounds(schema)]
    needed = "required" if required else ""
    cells = f"<td><code>{escape(name)}</code><td>{escape(_kind(schema))}<td>{needed}<td>{'; '.join(notes)}"
    return f"<tr>{cells}"


def _table(title: str, rows: Sequence[str]) -> str:
    return f"<table><caption>{escape(title)}</caption>{''.join(rows)}</table>" if rows else ""


def _bounds(schema: dict[str, Any]) -> Iterator[str]:
    for option in (schema, *schema.get("anyOf", ())):
        for name, text in (
            ("minimum", "at least {}"),
            ("exclusiveMinimum", "more than {}"),
            ("maximum", "at most {}"),
            ("maxLength", "at most {} characters"),
            ("maxItems", "at most {}"),
        ):
            if name in option:
                yield text.format(option[name])
    if schema.get("default") is not None:
        yield f"default {msgspec.json.encode(schema['default']).decode()}"


def _kind(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(_kind(option) for option in schema["anyOf"])
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items') or {})}"
    return str(schema.get("format") or schema.get("type") or "anything")


def _resolved(schema: dict[str, Any], schemas: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The component that a reference leads to, with its name."""
    if "$ref" not in schema:
        return schema, ""
    name = schema["$ref"].rpartition("/")[2]
    return schemas[name], name


def _prose(text: str) -> str:
    """Escaped, with what stands between backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _made(body: bytes) -> Made:
    return Made(body, f'"{hashlib.sha256(body).hexdigest()[:32]}"')
