"""The page of the API, and both forms of it ready to send."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import msgspec

from fastllm_control.api.everything import OPERATIONS
from fastllm_control.openapi import document
from fastllm_control.reference import Reference, page
from fastllm_control.reference_assets import SCRIPT, STYLE


class Collected(HTMLParser):
    """The tags, the attributes of all of them, the text, and what is open at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(text: str) -> Collected:
    collected = Collected()
    collected.feed(text)
    return collected


def test_every_operation_is_on_the_page_with_a_command() -> None:
    text = " ".join("".join(read(page(document(OPERATIONS))).text).split())
    for operation in OPERATIONS:
        assert operation.path in text
        assert " ".join(operation.summary.replace("`", "").split()) in text
    assert text.count("curl ") == len(OPERATIONS)


def test_fields_of_what_is_inside_are_shown_with_their_meaning() -> None:
    text = "\n".join(read(page(document(OPERATIONS))).text)
    for field in ("backends[].upstream_model", "rows[].backends[].id", "targets[].weight"):
        assert field in text
    assert "micro-units per million tokens" in text


def test_it_loads_nothing() -> None:
    found = read(page(document(OPERATIONS)))
    allowed = {
        "href",
        "lang",
        "charset",
        "name",
        "content",
        "class",
        "id",
        "type",
        "placeholder",
        "aria-label",
    }
    assert {name for name, _ in found.attributes} <= allowed
    targets = [value for name, value in found.attributes if name == "href"]
    assert all(target == "/openapi.json" or target.startswith("#") for target in targets)
    identities = [value for name, value in found.attributes if name == "id"]
    assert {target[1:] for target in targets if target.startswith("#")} <= set(identities)
    assert len(identities) == len(set(identities))
    assert not {"link", "img", "iframe", "object", "embed", "form"} & set(found.tags)


def test_style_and_script_are_those_that_the_policy_lets_in() -> None:
    text = page(document(OPERATIONS))
    assert f"<style>{STYLE}</style>" in text
    assert f"<script>{SCRIPT}</script>" in text
    assert text.count("<script") == text.count("<style") == 1


def test_what_comes_from_the_document_is_escaped() -> None:
    found = document(OPERATIONS)
    operation = found["paths"]["/admin/keys"]["post"]
    for place in ("summary", "description", "operationId"):
        operation[place] = "<script>alert(1)</script>"
    operation["requestBody"]["content"]["application/json"]["example"] = {"a": "<script>'\""}
    assert page(found).count("<script") == 1


def test_schemas_that_hold_themselves_and_huge_documents_are_no_trouble() -> None:
    found = document(OPERATIONS)
    schemas: dict[str, Any] = found["components"]["schemas"]
    schemas["KeyCreate"]["properties"]["again"] = {"$ref": "#/components/schemas/KeyCreate"}
    found["paths"] |= {
        f"/copy{place}/{path}": methods for place in range(20) for path, methods in found["paths"].items()
    }
    assert "again" in page(found)


def test_both_are_made_once() -> None:
    reference = Reference(OPERATIONS)
    assert reference.document is reference.document
    assert reference.page is reference.page
    assert msgspec.json.decode(reference.document.body) == msgspec.json.decode(
        msgspec.json.encode(document(OPERATIONS))
    )
    assert reference.document.etag != reference.page.etag
    assert Reference(OPERATIONS).document.etag == reference.document.etag
