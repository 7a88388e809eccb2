"""Rules × request → rule, targets, order: the table."""

from __future__ import annotations

import pytest

from fastllm_shared.chain import mean_inflight, route
from tests.shared.cases import Case
from tests.shared.choice_cases import CHAINS
from tests.shared.condition_cases import CONDITIONS
from tests.shared.rule_cases import RULES
from tests.shared.worlds import asked, chooser, facts

CASES = [*CONDITIONS, *RULES, *CHAINS]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_rules_and_request_lead_to(case: Case) -> None:
    made = case.made
    for backend in made.backends.values():  # cases share configurations
        backend.inflight = case.inflight.get(backend.id, 0)
        backend.latency = case.latency.get(backend.id)
        backend.out = backend.id in case.out
    for explain in (True, False):
        found = route(
            made.routes,
            case.model,
            facts(**case.facts),
            asked(7, **case.asked),
            chooser(),
            case.may.__contains__,
            lambda rule: mean_inflight(made.routes, rule, "openai", 0.0),
            explain=explain,
        )
        decision = found.decision
        assert decision.rule == case.rule
        assert " ".join(target.name for target in found.chain) == case.chain
        assert (decision.denied_status, decision.tag) == (case.denied, case.tag)
        shown = [
            f"{'' if one.model == case.model else one.model}{one.position}:{one.failed}"
            for one in decision.rejected
        ]
        assert " ".join(shown) == (case.by if explain else "")


def test_there_are_cases_enough_and_no_two_of_a_name() -> None:
    names = [case.name for case in CASES]
    assert len(names) == len(set(names)) >= 80
