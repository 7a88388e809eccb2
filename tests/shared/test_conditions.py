"""When a rule applies."""

from __future__ import annotations

from fastllm_shared.conditions import Compiled, Facts, problem
from fastllm_shared.snapshot import Conditions

FRIDAY_2300 = 1_764_975_600.0 - 7 * 86_400  # 28 November 2025, 23:00 UTC


def facts(now_unix: float = 0.0) -> Facts:
    return Facts(principal="team-a", roles=(), stream=False, now_unix=now_unix)


def test_a_span_that_wraps_midnight_belongs_to_the_day_on_which_it_begins() -> None:
    night = Compiled(Conditions(after="22:00", before="06:00", days=("fri",)))
    assert night.failed(facts(FRIDAY_2300), None) is None
    assert night.failed(facts(FRIDAY_2300 + 4 * 3600), None) is None
    assert night.failed(facts(FRIDAY_2300 + 8 * 3600), None) == "after"
    assert night.failed(facts(FRIDAY_2300 + 24 * 3600), None) == "days"


def test_what_cannot_be_stored_names_the_condition() -> None:
    found = problem(Conditions(after="09:00", timezone="Nowhere/At_All"))
    assert found is not None
    assert found.field == "timezone"
