"""Commands to paste, for operations of the OpenAPI document."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

_PROOFS = {
    "proxyToken": '-H "Authorization: Bearer $FASTLLM_PROXY_TOKEN"',
    "apiKey": '-H "Authorization: Bearer $FASTLLM_KEY"',
}
_DEPTH = 5


def command(path: str, method: str, operation: dict[str, Any], schemas: dict[str, Any]) -> str:
    """A `curl` for an operation. `$FASTLLM` is the control plane's address, `$FASTLLM_KEY` an admin key; what
    stands in the path is `$ID` and the like."""
    parts = ["curl"]
    if method != "get":
        parts.append(f"-X {method.upper()}")
    place = re.sub(r"\{(\w+)\}", lambda found: f"${found[1].upper()}", path)
    parts.append(f'"$FASTLLM{place}{_required_query(operation)}"')
    kinds = {name for way in operation["security"] for name in way}
    parts += [proof for kind, proof in _PROOFS.items() if kind in kinds]
    if path in ("/login", "/logout"):
        parts.append("-c cookies.txt -b cookies.txt")
    if "requestBody" in operation:
        content = operation["requestBody"]["content"]["application/json"]
        body = content.get("example", sample(content["schema"], schemas))
        parts.append(
            f"-H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body, ensure_ascii=False))}"
        )
    return " \\\n  ".join(parts)


def sample(schema: dict[str, Any], schemas: dict[str, Any], depth: int = _DEPTH) -> Any:
    """A value of the right shape, with nothing but what is required."""
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        return sample(schema["anyOf"][0], schemas, depth)
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type")
    if kind == "object":
        required = schema.get("required", ()) if depth else ()
        return {name: sample(schema["properties"][name], schemas, depth - 1) for name in required}
    if kind == "array":
        return []
    if kind == "string":
        return {"uuid": "00000000-0000-0000-0000-000000000000", "date-time": "2031-01-01T00:00:00Z"}.get(
            schema.get("format", ""), "…"
        )
    if kind in ("integer", "number"):
        return schema.get("minimum", 1)
    return {"boolean": True}.get(str(kind))


def _required_query(operation: dict[str, Any]) -> str:
    names = [one["name"] for one in operation["parameters"] if one["in"] == "query" and one["required"]]
    return "?" + "&".join(f"{name}=${name.upper()}" for name in names) if names else ""
