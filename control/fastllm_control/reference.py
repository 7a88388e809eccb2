"""`/docs`: the OpenAPI document as a page that loads nothing from anywhere."""

from __future__ import annotations

from html import escape
from typing import Any

from fastllm_control.openapi import PERMISSION

CONTENT_SECURITY_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222 }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
details { border-top: 1px solid #ddd; padding: .4rem 0 } summary { cursor: pointer }
code { font-family: ui-monospace, monospace }
.method { display: inline-block; width: 4.5rem; font-weight: 600 }
table { border-collapse: collapse; margin: .5rem 0 }
td, th { text-align: left; padding: .1rem .8rem .1rem 0; vertical-align: top }
.quiet { color: #666 }
"""


def page(document: dict[str, Any]) -> str:
    """The whole page."""
    schemas = document["components"]["schemas"]
    by_tag: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            by_tag.setdefault(operation["tags"][0], []).append(_operation(path, method, operation, schemas))
    sections = [f"<h2>{escape(tag)}</h2>{''.join(entries)}" for tag, entries in by_tag.items()]
    title = f"{document['info']['title']} {document['info']['version']}"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style><h1>{escape(title)}</h1>"
        f'<p>The same as a document: <a href="/openapi.json">/openapi.json</a></p>{"".join(sections)}</html>'
    )


def _operation(path: str, method: str, operation: dict[str, Any], schemas: dict[str, Any]) -> str:
    parts = [
        f"<p>{escape(operation['summary'])}. Needs <code>{escape(operation[PERMISSION])}</code>.</p>",
        _fields("Query", [(p["name"], p["schema"], p["required"]) for p in _queries(operation)]),
    ]
    if "requestBody" in operation:
        parts.append(_body("Body", operation["requestBody"]["content"], schemas))
    for status, response in operation["responses"].items():
        if status.startswith("2") and "content" in response:
            parts.append(_body(f"Answer {status}", response["content"], schemas))
    refusals = ", ".join(status for status in operation["responses"] if not status.startswith("2"))
    head = f'<span class="method">{method.upper()}</span> <code>{escape(path)}</code>'
    parts.append(f'<p class="quiet">May answer {refusals}</p>')
    return f"<details><summary>{head}</summary>{''.join(parts)}</details>"


def _queries(operation: dict[str, Any]) -> list[dict[str, Any]]:
    return [parameter for parameter in operation["parameters"] if parameter["in"] == "query"]


def _body(title: str, content: dict[str, Any], schemas: dict[str, Any]) -> str:
    schema = _resolved(content["application/json"]["schema"], schemas)
    required = set(schema.get("required", ()))
    fields = [(name, inner, name in required) for name, inner in schema.get("properties", {}).items()]
    note = f'<p class="quiet">{escape(schema.get("description", ""))}</p>' if "description" in schema else ""
    return _fields(title, fields) + note


def _fields(title: str, fields: list[tuple[str, dict[str, Any], bool]]) -> str:
    if not fields:
        return ""
    rows = "".join(
        f"<tr><td><code>{escape(name)}</code><td>{escape(_kind(schema))}<td>{'required' if needed else ''}"
        for name, schema, needed in fields
    )
    return f"<table><tr><th colspan=3>{escape(title)}</th></tr>{rows}</table>"


def _kind(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(_kind(option) for option in schema["anyOf"])
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    return str(schema.get("format") or schema.get("type") or "anything")


def _resolved(schema: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    return found
