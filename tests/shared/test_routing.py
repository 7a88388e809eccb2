"""The pure engine."""

from __future__ import annotations

from fastllm_shared.conditions import Facts
from fastllm_shared.routing import Decision, Rejected, compiled, decide
from fastllm_shared.snapshot import Conditions, FrontendModelEntry, RuleEntry, TargetEntry

FACTS = Facts(principal="team-a", roles=(), stream=False, now_unix=0.0)


def test_without_rules_the_defaults_apply() -> None:
    model = FrontendModelEntry("f", "f", 0.0, policy="weighted", targets=(TargetEntry("x"),))
    assert decide(compiled([model]), "f", FACTS) == Decision("f", policy="weighted")


def test_the_first_rule_whose_conditions_hold_decides() -> None:
    rules = (
        RuleEntry(0, Conditions(stream=True), tag="streams"),
        RuleEntry(1, Conditions(principals=("team-a",)), tag="t", policy="cheapest"),
    )
    found = decide(compiled([FrontendModelEntry("f", "f", 0.0, rules=rules)]), "f", FACTS)
    rejected = (Rejected("f", 0, "stream"),)
    assert found == Decision("f", rule=1, position=1, policy="cheapest", tag="t", rejected=rejected)


def test_jumps_may_be_many() -> None:
    models = [
        FrontendModelEntry(
            f"f{n}", f"f{n}", 0.0, rules=(RuleEntry(n % 7, action="jump", jump=f"f{n + 1}", tag=f"t{n}"),)
        )
        for n in range(1500)
    ]
    found = decide(compiled(models), "f3", FACTS)
    rejected = (Rejected("f1499", 1499 % 7, "jump"),)
    assert found == Decision("f1499", rule=3, tag="t1498", rejected=rejected)
