"""Strict decoding: what is refused, and what the refusal names."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastllm_control.decoding import decode_body, decode_path, decode_query
from fastllm_control.errors import Invalid


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    weight: Annotated[int, msgspec.Meta(ge=1)] = 1


class Body(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    targets: list[Inner] = []
    extra: dict[str, Any] = {}


class Query(msgspec.Struct, forbid_unknown_fields=True):
    limit: Annotated[int, msgspec.Meta(ge=1)] = 100
    force: bool = False
    name: str | None = None


DECODER = msgspec.json.Decoder(Body)


def refusal(body: bytes) -> Invalid:
    with pytest.raises(Invalid) as refused:
        decode_body(DECODER, body)
    return refused.value


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        (b'{"nam":"x"}', "unknown_field", "nam"),
        (b"{}", "invalid_value", "name"),
        (b'{"name":1}', "invalid_value", "name"),
        (b'{"name":"x","targets":[{},{"weight":0}]}', "invalid_value", "targets[1].weight"),
        (b'{"name":"x","targets":[{"wait":0}]}', "unknown_field", "targets[0].wait"),
        (b'{"name":"x","targets":{}}', "invalid_value", "targets"),
        (b'{"name":"a\\u0000b"}', "invalid_value", "name"),
        (b'{"name":"x","extra":{"k":["a\\u0000b"]}}', "invalid_value", "extra.k[0]"),
        (b'{"name":"x","extra":{"k\\u0000":1}}', "invalid_value", "extra"),
        (b"[]", "invalid_value", None),
        (b"", "body_missing", None),
        (b"{", "malformed_json", None),
        (b'{"name":"\xff"}', "malformed_json", None),
        (b'{"name":"\\ud800"}', "malformed_json", None),
        (b'{"name":"x"} x', "malformed_json", None),
    ],
)
def test_bodies(body: bytes, code: str, field: str | None) -> None:
    refused = refusal(body)
    assert (refused.code, refused.field) == (code, field)
    assert refused.message


def test_a_body_that_is_right() -> None:
    assert decode_body(DECODER, b' {"name":"x","targets":[{"weight":2}]} ') == Body("x", [Inner(2)])


def test_messages_are_short_whatever_was_sent() -> None:
    refused = refusal(b'{"' + b"x" * 100_000 + b'":1}')
    assert len(refused.message) < 400
    assert len(refused.field or "") < 400


def test_deep_nesting_is_refused() -> None:
    assert refusal(b'{"name":"x","extra":{"k":' + b"[" * 100_000 + b"]" * 100_000 + b"}}").code == (
        "malformed_json"
    )


def refused_field(body: bytes) -> str | None:
    """The field of the refusal; `None` as well when there is none, or when the body is right."""
    try:
        decode_body(DECODER, body)
    except Invalid as refused:
        return refused.field
    return None


@given(st.binary(max_size=60))
def test_no_body_is_a_defect(body: bytes) -> None:
    refused_field(body)


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=5) | st.integers() | st.none(), max_size=3))
def test_no_object_is_a_defect(values: dict[str, Any]) -> None:
    field = refused_field(msgspec.json.encode({"name": "x", **values}))
    assert field is None or any(field.startswith(name[:5]) for name in values)


def test_queries_are_typed() -> None:
    assert decode_query(Query, b"limit=5&force=true&name=a%2Fb+c") == Query(5, True, "a/b c")
    assert decode_query(Query, b"") == Query()
    assert decode_query(None, b"") is None


@pytest.mark.parametrize(
    ("raw", "code", "field"),
    [
        (b"limit=x", "invalid_value", "limit"),
        (b"limit=0", "invalid_value", "limit"),
        (b"force=maybe", "invalid_value", "force"),
        (b"what=1", "unknown_field", "what"),
        (b"limit=1&limit=2", "repeated_parameter", "limit"),
        (b"name=%00", "invalid_value", "name"),
        (b"name=%ff", "malformed_query", None),
        (b"&".join(b"a%d=1" % n for n in range(200)), "malformed_query", None),
    ],
)
def test_queries_that_are_refused(raw: bytes, code: str, field: str | None) -> None:
    with pytest.raises(Invalid) as refused:
        decode_query(Query, raw)
    assert (refused.value.code, refused.value.field) == (code, field)


def test_parameters_where_none_are_taken() -> None:
    with pytest.raises(Invalid) as refused:
        decode_query(None, b"limit=1")
    assert refused.value.field == "limit"


def test_paths() -> None:
    assert decode_path({"id": "a%2Fb/c%20d", "other": "%F0%9F%A6%99"}) == {"id": "a/b/c d", "other": "🦙"}
    for raw in ("%ff", "a%00b"):
        with pytest.raises(Invalid) as refused:
            decode_path({"id": raw})
        assert refused.value.field == "id"


def test_no_regular_expression_is_shown_to_callers() -> None:
    class Named(msgspec.Struct):
        name: Annotated[str, msgspec.Meta(pattern="^[a-z]+$")]

    with pytest.raises(Invalid, match="it holds characters that are not allowed here") as refused:
        decode_body(msgspec.json.Decoder(Named), b'{"name":" x - at `y`"}')
    assert refused.value.field == "name"
