"""The pure engine."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from fastllm_shared.conditions import Facts
from fastllm_shared.routing import (
    Decision,
    Rejected,
    arrange,
    compiled,
    decide,
    mix,
    score,
    seed_of,
    stable_hash,
)
from fastllm_shared.snapshot import Conditions, FrontendModelEntry, RuleEntry, TargetEntry


class Named(msgspec.Struct, frozen=True):
    name: str
    weight: int


FACTS = Facts(principal="team-a", roles=(), stream=False, now_unix=0.0)
_KEYS = st.integers(0, 2**64 - 1)


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


def test_hashes_are_the_same_on_every_replica() -> None:
    """Fixed figures: a change of them would move every conversation away from its cache."""
    assert stable_hash(b"a", b"bc") == 15191779413256427671
    assert seed_of("backend-1") == 14346540756414430653
    assert mix(1, 2) == 2185194620014831856


def test_parts_are_kept_apart() -> None:
    assert stable_hash(b"a", b"bc") != stable_hash(b"ab", b"c") != stable_hash(b"abc")


@given(_KEYS, _KEYS, st.floats(0.001, 1e6))
def test_scores_are_positive_and_grow_with_weight(key: int, seed: int, weight: float) -> None:
    assert 0 <= mix(key, seed) < 2**64
    assert 0 < score(key, seed, weight) < score(key, seed, weight * 2)


def test_nothing_falls_to_a_weight_of_zero() -> None:
    assert score(1, 2, 0) < score(1, 2, 0.0001)


@given(_KEYS, st.lists(st.integers(0, 9), max_size=5))
def test_arranging_moves_one_to_the_front_and_nothing_else(key: int, weights: list[int]) -> None:
    targets = [Named(f"t{n}", weight) for n, weight in enumerate(weights)]
    arranged = arrange(targets, key)
    assert arrange(targets, key) == arranged
    assert sorted(arranged, key=lambda t: t.name) == targets
    assert [t for t in targets if t is not arranged[0]] == list(arranged[1:]) if arranged else True
    if any(weights):
        assert arranged[0].weight > 0


def test_keys_are_shared_out_by_weight_and_a_change_moves_only_what_it_must() -> None:
    before = [Named("a", 1), Named("b", 2), Named("c", 1)]
    after = [Named("a", 1), Named("b", 2), Named("c", 2)]
    keys = [stable_hash(str(n).encode()) for n in range(4000)]
    counts: Counter[str] = Counter()
    for key in keys:
        first, then = arrange(before, key)[0].name, arrange(after, key)[0].name
        counts[first] += 1
        assert then in (first, "c")
    shares: dict[str, Any] = {name: count / len(keys) for name, count in counts.items()}
    assert abs(shares["a"] - 0.25) < 0.03
    assert abs(shares["b"] - 0.5) < 0.03
