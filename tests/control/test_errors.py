"""The tree of refusals is the one that its docstring draws."""

from __future__ import annotations

import re

import pytest

from fastllm_control import errors
from fastllm_control.errors import ApiError, Invalid, TooMany

DRAWN = {name: int(status) for name, status in re.findall(r"[├└]── (\w+)\s+(\d{3})", errors.__doc__ or "")}
KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, ApiError)]


def test_the_drawing_is_complete() -> None:
    assert {kind.__name__: kind.status for kind in KINDS if kind is not ApiError} == DRAWN


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not ApiError])
def test_the_tree_is_shallow(kind: type[ApiError]) -> None:
    assert kind.__bases__ == (ApiError,)


def test_what_a_refusal_carries() -> None:
    refused = Invalid("invalid_value", "must be positive", "weight")
    assert (refused.code, str(refused), refused.field) == ("invalid_value", "must be positive", "weight")
    waiting = TooMany("too_many_attempts", "wait", 7)
    assert (waiting.field, waiting.retry_after_seconds) == (None, 7)
