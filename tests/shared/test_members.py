from __future__ import annotations

import json
from typing import Any

import pytest

from fastllm_shared.members import NotAnObject, scan


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("{}", []),
        (' { "a" : 1 , "b":"é€", "a" : [2, {"a": 3}] } ', [("a", 1), ("b", "é€"), ("a", [2, {"a": 3}])]),
        ('{"\\u0061":"x"}', [("a", "x")]),
    ],
)
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_every_member_stands_where_it_is_said_to(
    text: str, mark: bytes, found: list[tuple[str, Any]]
) -> None:
    body = mark + text.encode()
    assert [(name, json.loads(body[start:end])) for name, start, end in scan(body)] == found


@pytest.mark.parametrize("body", [b"[]", b'"x"', b"", b"7"])
def test_what_is_no_object(body: bytes) -> None:
    with pytest.raises(NotAnObject):
        scan(body)


@pytest.mark.parametrize(
    "body", [b"{", b'{"a":1}x', b'{"a":NaN}', b'{"a" 1}', b'{"a":1 "b":2}', b'{"\xff":1}']
)
def test_what_is_not_valid(body: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whatever the reason
        scan(body)


def test_what_is_too_deep() -> None:
    with pytest.raises(RecursionError):
        scan(b'{"a":' + b"[" * 100_000)
