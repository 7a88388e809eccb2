"""Whether a master key is weak."""

from __future__ import annotations

import pytest

from fastllm_control.litellm.master_key import entropy_bits, weakness
from fastllm_shared.keys import new_key


@pytest.mark.parametrize(
    "key", ["sk-1234", "sk-test-5", "", "sk-" + "a" * 60, "sk-" + "ab" * 30, "sk-password-of-the-gateway"]
)
def test_weak_ones(key: str) -> None:
    assert weakness(key)


def test_a_random_one_is_not() -> None:
    assert [weakness(new_key()) for _ in range(200)] == [None] * 200
    assert entropy_bits("") == 0
