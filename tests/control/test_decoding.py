"""Strict decoding: what is refused, and what the refusal names."""

from __future__ import annotations

import datetime
import time
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastllm_control.decoding import decode_body, decode_path, decode_query, refuse_other_formats
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
    page: int | None = None
    since: datetime.datetime | None = None


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
        (b'{"name":"x","name":"x"}', "repeated_field", "name"),
        (b'{"name":"x","n\\u0061me":"y"}', "repeated_field", "name"),
        (b'{"name":"x","targets":[{},{"weight":1,"weight":2}]}', "repeated_field", "targets[1].weight"),
        (b'{"name":"x","extra":{"k":{"a":[],"b":1,"a":[]}}}', "repeated_field", "extra.k.a"),
        (b'{"name":"x","extra":{"":1,"":2}}', "repeated_field", "extra."),
    ],
)
def test_bodies(body: bytes, code: str, field: str | None) -> None:
    refused = refusal(body)
    assert (refused.code, refused.field) == (code, field)
    assert refused.message


def test_a_body_that_is_right() -> None:
    assert decode_body(DECODER, b' {"name":"x","targets":[{"weight":2}]} ') == Body("x", [Inner(2)])


def test_what_programs_send_is_not_searched_for_repeated_members() -> None:
    assert decode_body(DECODER, b'{"name":"x","name":"y"}', unique=False) == Body("y")


def test_a_member_given_a_great_many_times_takes_no_longer() -> None:
    started = time.perf_counter()
    assert refusal(b"{" + b",".join([b'"name":"x"'] * 80_000) + b"}").field == "name"
    assert time.perf_counter() - started < 1


def test_numbers_of_any_length_are_refused_or_read() -> None:
    assert (
        refusal(b'{"name":"x","targets":[{"weight":' + b"9" * 100_000 + b"}]}").field == "targets[0].weight"
    )
    decode_body(DECODER, b'{"name":"x","extra":{"k":1e-999,"l":' + b"9" * 300 + b"}}")


@pytest.mark.parametrize(
    "kind",
    [
        None,
        "",
        "application/json",
        "Application/JSON; charset=utf-8",
        "application/merge-patch+json",
        "text/json",
        "application/x-www-form-urlencoded",
        "text/plain;charset=UTF-8",
        "application/octet-stream",
    ],
)
def test_formats_that_are_taken_for_json(kind: str | None) -> None:
    refuse_other_formats(kind, None)
    refuse_other_formats(kind, "identity")


@pytest.mark.parametrize(
    ("kind", "encoding", "code"),
    [
        ("multipart/form-data; boundary=x", None, "unsupported_content_type"),
        ("application/xml", None, "unsupported_content_type"),
        ("application/yaml", None, "unsupported_content_type"),
        ("application/jsonx", None, "unsupported_content_type"),
        ("json", None, "unsupported_content_type"),
        ("x" * 9000, None, "unsupported_content_type"),
        ("application/json", "gzip", "unsupported_encoding"),
    ],
)
def test_formats_that_are_refused(kind: str, encoding: str | None, code: str) -> None:
    with pytest.raises(Invalid) as refused:
        refuse_other_formats(kind, encoding)
    assert refused.value.code == code
    assert len(refused.value.message) < 500


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
    assert decode_query(Query, b"name=null") == Query(name="null")
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
        (b"page=null", "invalid_value", "page"),
        (b"page=NULL", "invalid_value", "page"),
        (b"since=0.5", "invalid_value", "since"),
        (b"since=1700000000", "invalid_value", "since"),
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
