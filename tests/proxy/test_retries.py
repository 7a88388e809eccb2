"""How many retries are made at one time."""

from __future__ import annotations

import pytest

from fastllm_proxy.retries import RetryBudget


@pytest.mark.parametrize(("in_flight", "allowed"), [(0, 3), (10, 3), (15, 3), (16, 4), (100, 20)])
def test_retries_are_a_fifth_of_what_is_in_flight(in_flight: int, allowed: int) -> None:
    budget = RetryBudget()
    budget.in_flight = in_flight
    for _ in range(allowed):
        assert budget.allows_another()
        budget.retrying += 1
    assert not budget.allows_another()
