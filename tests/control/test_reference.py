"""The page of the API."""

from __future__ import annotations

from html.parser import HTMLParser

from fastllm_control.api.everything import OPERATIONS
from fastllm_control.openapi import document
from fastllm_control.reference import page


class Collected(HTMLParser):
    """The attributes of all tags, and the text."""

    def __init__(self) -> None:
        super().__init__()
        self.attributes: list[tuple[str, str]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(text: str) -> Collected:
    collected = Collected()
    collected.feed(text)
    return collected


def test_every_operation_is_on_the_page() -> None:
    text = " ".join(read(page(document(OPERATIONS))).text)
    for operation in OPERATIONS:
        assert operation.path in text
        assert operation.summary in text


def test_it_loads_nothing() -> None:
    attributes = read(page(document(OPERATIONS))).attributes
    assert {name for name, _ in attributes} <= {"href", "lang", "charset", "class", "colspan"}
    assert [value for name, value in attributes if name == "href"] == ["/openapi.json"]


def test_what_comes_from_the_document_is_escaped() -> None:
    found = document(OPERATIONS)
    found["paths"]["/healthz"]["get"]["summary"] = "<script>alert(1)</script>"
    assert "<script>" not in page(found)
