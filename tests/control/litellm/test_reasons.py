"""Why fields are not carried."""

from __future__ import annotations

import pytest

from fastllm_control.litellm.reasons import UNKNOWN, reason_for


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("cache", "cached"),
        ("drop_params", "bodies"),
        ("redis_password", "Redis"),
        ("redis_something_new", "Redis"),
        ("supports_vision", "descriptions"),
        ("input_cost_per_second", "prices"),
        ("num_retries", "budget"),
        ("aws_region_name", "signed"),
        ("mcp_servers", "tools"),
    ],
)
def test_known_ones_say_why(name: str, word: str) -> None:
    assert word in reason_for(name)


def test_unknown_ones_say_so() -> None:
    assert reason_for("something_new") == UNKNOWN
