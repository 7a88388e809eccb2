from __future__ import annotations

import pytest

from fastllm_proxy.dialects.numbers import MAX_COUNT, count, micros, nested


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, 0),
        (5, 5),
        (5.0, 5),
        (4.6, 5),
        (True, None),
        (-1, None),
        (float("nan"), None),
        (float("inf"), None),
        (MAX_COUNT + 1, None),
        ("5", None),
        (None, None),
    ],
)
def test_count(value: object, expected: int | None) -> None:
    assert count({"x": value}, "x") == expected


def test_the_first_usable_name_counts() -> None:
    assert count({"a": None, "b": 2, "c": 3}, "a", "b", "c") == 2
    assert count({}, "a") is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.00014, 140),
        (0.1, 100_000),
        (1, 1_000_000),
        (0.0000005, 1),
        (0.00000049, 0),
        (-1, None),
        (float("nan"), None),
        (1e300, None),
        ("1", None),
        (None, None),
        (True, None),
    ],
)
def test_micros_round_half_up(value: object, expected: int | None) -> None:
    assert micros(value) == expected


def test_nested_is_an_object_or_nothing() -> None:
    assert nested({"a": {"b": 1}}, "a") == {"b": 1}
    assert nested({"a": [1]}, "a") == {}
    assert nested({}, "a") == {}
