"""Schemas say what the Structs do, and what msgspec cannot know of them."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from fastllm_control.paging import Page
from fastllm_control.schemas import Schemas, without_null


class Inner(msgspec.Struct, frozen=True, omit_defaults=True):
    weight: int = 1


class Sent(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(pattern=r"^[a-z]+$(?!\n)")]
    inner: Inner = Inner()


class Shown(msgspec.Struct):
    id: str
    color: Literal["red", "blue"] = "red"
    next: str | None = None
    name: Annotated[str, msgspec.Meta(description="as it says itself")] = ""
    odd: int = 0


SCHEMAS = Schemas([Sent], [Page[Shown], Inner])


def test_what_is_answered_holds_every_field_and_what_is_sent_need_not() -> None:
    assert SCHEMAS.components["Shown"]["required"] == ["id", "color", "next", "name", "odd"]
    assert SCHEMAS.components["Page_Shown_"]["required"] == ["rows", "next"]
    assert SCHEMAS.components["Sent"]["required"] == ["name"]
    # It is both sent and answered, and leaves out what has its default.
    assert SCHEMAS.components["Inner"].get("required", []) == []


def test_answers_that_leave_out_defaults_require_nothing() -> None:
    assert Schemas([], [Inner]).components["Inner"].get("required", []) == []


def test_fields_are_described_by_themselves_or_by_the_glossary() -> None:
    properties = SCHEMAS.components["Shown"]["properties"]
    assert properties["name"]["description"] == "as it says itself"
    assert properties["id"]["description"]
    assert "description" not in properties["odd"]


def test_patterns_and_enumerations_are_for_every_reader() -> None:
    assert SCHEMAS.components["Sent"]["properties"]["name"]["pattern"] == "^[a-z]+$"
    assert SCHEMAS.components["Shown"]["properties"]["color"]["type"] == "string"


def test_types_are_found_again() -> None:
    assert SCHEMAS.of(Sent) == {"$ref": "#/components/schemas/Sent"}
    assert SCHEMAS.resolved(SCHEMAS.of(Page[Shown]))["title"] == "Page[Shown]"
    assert SCHEMAS.resolved({"type": "string"}) == {"type": "string"}


def test_absent_is_the_only_null_of_a_query() -> None:
    nullable = {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}], "default": None}
    assert without_null(nullable) == {"type": "string", "maxLength": 3}
    several = {"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}], "default": 1}
    assert without_null(several) == {"anyOf": [{"type": "string"}, {"type": "integer"}], "default": 1}
    assert without_null({"type": "integer"}) == {"type": "integer"}
