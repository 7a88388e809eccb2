"""When a rule applies."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastllm_shared.conditions import DAYS, Compiled, problem
from fastllm_shared.snapshot import Conditions
from tests.shared.worlds import facts

_MOMENTS = st.floats(0, 4_000_000_000)
_TIMES = st.builds("{:02}:{:02}".format, st.integers(0, 23), st.integers(0, 59))
_ZONES = st.sampled_from(
    ["UTC", "Europe/Brussels", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Pacific/Apia"]
)


def holds(moment: float, **conditions: object) -> bool:
    return Compiled(Conditions(**conditions)).failed(facts(now_unix=moment), None) is None  # type: ignore[arg-type]


@given(_MOMENTS, _TIMES, _TIMES, _ZONES)
def test_a_span_and_the_rest_of_the_day_never_overlap_and_leave_nothing_out(
    moment: float, one: str, other: str, zone: str
) -> None:
    inside = holds(moment, after=one, before=other, timezone=zone)
    outside = holds(moment, after=other, before=one, timezone=zone)
    assert inside != outside or one == other


@given(_MOMENTS, _TIMES, _TIMES, _ZONES)
def test_every_moment_of_a_span_belongs_to_one_day(moment: float, one: str, other: str, zone: str) -> None:
    days = [day for day in DAYS if holds(moment, after=one, before=other, days=(day,), timezone=zone)]
    assert len(days) == holds(moment, after=one, before=other, timezone=zone)
    assert holds(moment, after=one, before=other, days=DAYS, timezone=zone) == bool(days)


@given(_MOMENTS, _ZONES)
def test_every_moment_is_on_one_day(moment: float, zone: str) -> None:
    assert sum(holds(moment, days=(day,), timezone=zone) for day in DAYS) == 1


@given(st.integers(0, 10), st.none() | st.integers(0, 10), st.none() | st.integers(0, 10))
def test_bounds_are_those_of_a_closed_range(value: int, low: int | None, high: int | None) -> None:
    when = Compiled(Conditions(min_max_tokens=low, max_max_tokens=high))
    inside = (low is None or low <= value) and (high is None or value <= high)
    assert (when.failed(facts(max_tokens=value), None) is None) == inside


def test_nothing_asked_always_holds() -> None:
    assert Compiled(Conditions()).failed(facts(), None) is None


def test_what_is_not_asked_is_not_looked_at() -> None:
    class Nothing:
        def __getattr__(self, name: str) -> object:
            raise AssertionError(name)

    assert Compiled(Conditions()).failed(Nothing(), None) is None  # type: ignore[arg-type]  # on purpose
    with pytest.raises(AssertionError, match="header"):
        Compiled(Conditions(headers={"a": "b"})).failed(Nothing(), None)  # type: ignore[arg-type]  # see above


@pytest.mark.parametrize(
    ("when", "field"),
    [
        (Conditions(after="09:00", timezone="Nowhere/At_All"), "timezone"),
        (Conditions(after="09:00", timezone="localtime"), "timezone"),
        (Conditions(after="09:00", timezone="right/Europe/Brussels"), "timezone"),
        (Conditions(timezone="UTC"), "timezone"),
        (Conditions(after="09:00", timezone="../../etc/passwd"), "timezone"),
        (Conditions(min_prompt_tokens=2, max_prompt_tokens=1), "min_prompt_tokens"),
        (Conditions(min_max_tokens=2, max_max_tokens=1), "min_max_tokens"),
        (Conditions(min_budget_used_percent=2, max_budget_used_percent=1), "min_budget_used_percent"),
        (Conditions(principals=()), "principals"),
        (Conditions(roles=()), "roles"),
        (Conditions(days=()), "days"),
        (Conditions(headers={}), "headers"),
        (Conditions(headers={"X-A": "1", "x-a": "2"}), "headers"),
        (Conditions(headers={"x-a": " 1"}), "headers"),
        (Conditions(headers={"x-a": "1 "}), "headers"),
        (Conditions(days=("mon", "mon")), "days"),
        (Conditions(after="09:00", before="09:00"), "before"),
    ],
)
def test_what_cannot_be_stored_names_the_condition(when: Conditions, field: str) -> None:
    found = problem(when)
    assert found is not None
    assert found.field == field


def test_what_can_be_stored() -> None:
    assert problem(Conditions()) is None
    assert problem(Conditions(min_prompt_tokens=1, max_prompt_tokens=1, stream=False)) is None
    assert problem(Conditions(headers={"x-a": "", "x-b": "a b"})) is None
    assert (
        problem(Conditions(after="22:00", before="06:00", days=("fri",), timezone="Europe/Brussels")) is None
    )
