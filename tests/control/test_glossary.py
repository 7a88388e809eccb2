"""Every field that callers see is described, and nothing is described that there is not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastllm_control.api.everything import OPERATIONS
from fastllm_control.glossary import GLOSSARY
from fastllm_control.openapi import document

DOCUMENT = document(OPERATIONS)


def fields() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, schema in DOCUMENT["components"]["schemas"].items():
        for field, inner in schema.get("properties", {}).items():
            yield f"{name}.{field}", inner
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            for parameter in operation["parameters"]:
                yield f"{method} {path} {parameter['name']}", parameter


def test_every_field_says_what_it_is() -> None:
    missing = [name for name, described in fields() if not described.get("description")]
    assert not missing, (
        "say what they mean: in control/fastllm_control/glossary.py, or in Meta(description=…)"
    )


def test_it_is_in_order_of_the_alphabet_and_short() -> None:
    for text in GLOSSARY.values():
        assert text[0].isupper() or text[0] in "`0123456789"
        assert not text.endswith(".")
