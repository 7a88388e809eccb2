"""Which of several is chosen."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from fastllm_shared.hashing import stable_hash
from fastllm_shared.policies import Chooser
from fastllm_shared.snapshot import Policy
from fastllm_shared.targets import Member
from tests.shared.worlds import Busy, asked, chooser, entries, frontend, members, model, world

POLICIES: tuple[Policy, ...] = (
    "weighted",
    "cache-affinity",
    "least-loaded",
    "lowest-latency",
    "round-robin",
    "cheapest",
)
KEYS = [stable_hash(str(n).encode()) for n in range(2000)]


def choose(
    among: Sequence[Member[Busy]], policy: Policy, key: int = 0, by: Chooser | None = None, **changes: object
) -> str:
    return (by or chooser()).member(among, policy, asked(key, **changes), "list").backend.id


def chances() -> Chooser:
    return chooser(random.Random(1).choice)


@pytest.mark.parametrize("policy", POLICIES)
def test_one_needs_no_choosing(policy: Policy) -> None:
    assert choose(members(1), policy) == "m-1"


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_chooses_one_of_them_and_spares_none_for_ever(policy: Policy) -> None:
    among, by = members(3), chances()
    assert {choose(among, policy, key, by) for key in KEYS[:200]} == {"m-1", "m-2", "m-3"}


@pytest.mark.parametrize("policy", ["weighted", "cache-affinity", "cheapest"])
def test_a_conversation_stays_and_weights_share_out_conversations(policy: Policy) -> None:
    among = members(2, (3, 1))
    counts = Counter(choose(among, policy, key) for key in KEYS)
    assert 1400 < counts["m-1"] < 1600
    assert all(choose(among, policy, key) == choose(among, policy, key, chances()) for key in KEYS[:50])


@pytest.mark.parametrize("policy", ["weighted", "cache-affinity"])
@pytest.mark.parametrize("weights", [(1, 1, 1, 1, 1), (5, 4, 3, 2, 1)])
def test_when_one_goes_only_its_conversations_move(policy: Policy, weights: tuple[int, ...]) -> None:
    among = members(5, weights)
    left = [m for m in among if m.backend.id != "m-3"]
    before = [choose(among, policy, key) for key in KEYS[:500]]
    after = [choose(left, policy, key) for key in KEYS[:500]]
    assert all(a == b for b, a in zip(before, after, strict=True) if b != "m-3")
    assert len({a for b, a in zip(before, after, strict=True) if b == "m-3"}) > 1


def test_a_hot_one_is_passed_over_until_it_has_cooled() -> None:
    among = members(3)
    home = next(m.backend for m in among if m.backend.id == choose(among, "cache-affinity", 7))
    home.inflight = 8
    assert choose(among, "cache-affinity", 7) == home.id
    home.inflight = 9
    second = choose(among, "cache-affinity", 7)
    assert second != home.id
    # Hotter by more than 8, but not by more than half: both bounds must be passed.
    for member in among:
        member.backend.inflight = 30
    for inflight, chosen in ((45, home.id), (46, second)):
        home.inflight = inflight
        assert choose(among, "cache-affinity", 7) == chosen
        assert choose(among, "weighted", 7) == home.id


def test_least_loaded_counts_per_weight_and_does_not_herd_on_ties() -> None:
    among = members(4)
    for member, inflight in zip(among, (1, 1, 0, 0), strict=True):
        member.backend.inflight = inflight
    by = chances()
    assert {choose(among, "least-loaded", by=by) for _ in range(50)} == {"m-3", "m-4"}
    heavy = members(2, (3, 1))
    heavy[0].backend.inflight, heavy[1].backend.inflight = 3, 2
    assert choose(heavy, "least-loaded") == "m-1"
    heavy[0].backend.inflight = 7
    assert choose(heavy, "least-loaded") == "m-2"


def test_of_two_drawn_among_the_least_loaded_the_faster_one_is_taken() -> None:
    among, by = members(2), chances()
    among[0].backend.latency, among[1].backend.latency = 0.5, 0.1
    counts = Counter(choose(among, "least-loaded", by=by) for _ in range(400))
    assert counts["m-2"] > counts["m-1"] > 0


@pytest.mark.parametrize(
    ("latencies", "eligible"),
    [
        ((0.5, 0.4, 0.8), {"m-2"}),
        ((0.5, 0.45, 0.44), {"m-2", "m-3"}),
        ((0.45, 0.4, 0.4501), {"m-1", "m-2"}),
        ((0.5, None, 0.1), {"m-2", "m-3"}),
        ((None, None, 9.0), {"m-1", "m-2", "m-3"}),
        ((None, None, None), {"m-1", "m-2", "m-3"}),
        ((0.0, 0.0, 0.1), {"m-1", "m-2"}),
    ],
)
def test_lowest_latency(latencies: tuple[float | None, ...], eligible: set[str]) -> None:
    among, by = members(3), chances()
    for member, latency in zip(among, latencies, strict=True):
        member.backend.latency = latency
    assert {choose(among, "lowest-latency", by=by) for _ in range(100)} == eligible


def test_who_has_no_sample_is_not_flooded() -> None:
    among, by = members(2), chances()
    among[0].backend.latency = 0.01
    chosen = Counter[str]()
    for _ in range(200):
        backend = by.member(among, "lowest-latency", asked(), "list").backend
        chosen[backend.id] += 1
        if backend.latency is None:
            backend.inflight += 1  # it does not answer
    assert chosen["m-2"] < 20


def test_round_robin_takes_turns_by_weight_whatever_the_load() -> None:
    among, by = members(3, (2, 1, 1)), chooser()
    among[1].backend.inflight = 1000
    assert "".join(choose(among, "round-robin", by=by)[-1] for _ in range(8)) == "12311231"


def test_cheapest_is_what_this_request_would_cost() -> None:
    among = [
        *members(1, input_price_per_mtok=1, output_price_per_mtok=10),
        *world([model("n", input_price_per_mtok=5, output_price_per_mtok=5)]).backends.values(),
    ]
    dear_answers = among[0]
    assert isinstance(dear_answers, Member)
    dear_prompts = Member(among[1], 1)  # type: ignore[type-var]  # a backend
    both: list[Member[Busy]] = [dear_answers, dear_prompts]  # type: ignore[list-item]  # see above
    assert choose(both, "cheapest", prompt_tokens=10_000, max_tokens=10) == "m-1"
    assert choose(both, "cheapest", prompt_tokens=10, max_tokens=10_000) == "n-1"
    assert choose(both, "cheapest", prompt_tokens=100) == "n-1"
    assert choose(both, "cheapest", prompt_tokens=100, generates=False) == "m-1"


def test_of_targets_those_are_chosen_among_that_can_serve() -> None:
    made = world([model("a", 2), model("b"), model("c", 0)], frontend("f", ("c", 9), ("a", 1), ("b", 0)))
    targets = made.routes.models["f"].default
    by = chooser()

    def chain() -> list[str]:
        return [target.name for target in by.arrange(targets, asked(3))]

    assert chain() == ["a", "c", "b"]
    made.backends["a-1"].out = made.backends["a-2"].out = True
    assert chain() == ["b", "c", "a"]
    made.backends["b-1"].out = True
    assert chain() == ["c", "a", "b"]


def test_a_target_is_as_busy_as_its_least_busy_backend_in_rotation() -> None:
    made = world([model("a", 2), model("b", 2)], frontend("f", "a", "b", policy="least-loaded"))
    targets, by = made.routes.models["f"].default, chooser()
    for id_, inflight in (("a-1", 0), ("a-2", 5), ("b-1", 2), ("b-2", 3)):
        made.backends[id_].inflight = inflight
    assert by.arrange(targets, asked())[0].name == "a"
    made.backends["a-1"].out = True
    assert by.arrange(targets, asked())[0].name == "b"


def test_a_target_is_as_fast_as_its_fastest_and_as_cheap_as_its_cheapest() -> None:
    made = world(
        [model("a", 2, input_price_per_mtok=9, output_price_per_mtok=9), model("b", 2)],
        frontend("fast", "a", "b", policy="lowest-latency"),
        frontend("cheap", "b", "a", policy="cheapest"),
    )
    for id_, latency in (("a-1", 0.5), ("b-1", 9.0), ("b-2", 0.1)):
        made.backends[id_].latency = latency
    by = chooser()
    assert by.arrange(made.routes.models["fast"].default, asked())[0].name == "b"
    assert by.arrange(made.routes.models["cheap"].default, asked())[0].name == "a"


def test_weights_of_zero_are_for_failover_alone() -> None:
    spare = frontend("f", ("a", 0), ("b", 2), ("c", 0))
    made = world([model("a"), model("b"), model("c")], spare, frontend("none", ("c", 0), ("a", 0)))
    by = chooser()
    for policy in POLICIES:
        named = frontend("f", ("a", 0), ("b", 2), ("c", 0), policy=policy)
        made = world([model("a"), model("b"), model("c")], named, frontend("none", ("c", 0), ("a", 0)))
        found = by.arrange(made.routes.models["f"].default, asked(5))
        assert [t.name for t in found] == ["b", "a", "c"]
        assert [t.name for t in by.arrange(made.routes.models["none"].default, asked(5))] == ["c", "a"]
    assert entries(("a", 0))[0].weight == 0
