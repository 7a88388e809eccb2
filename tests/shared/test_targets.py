"""Names as lists of backends."""

from __future__ import annotations

import msgspec
import pytest

from fastllm_shared.snapshot import Policy, ProviderEntry, RuleEntry, Snapshot
from fastllm_shared.targets import idle_backends, policy_among_backends, resolve
from tests.shared.worlds import entries, frontend, model, pool, world


@pytest.mark.parametrize(
    ("own", "listed", "policy"),
    [
        ("least-loaded", "round-robin", "least-loaded"),
        ("weighted", None, "weighted"),
        (None, "round-robin", "round-robin"),
        (None, "weighted", "cache-affinity"),
        (None, None, "cache-affinity"),
    ],
)
def test_whose_policy_counts_among_backends(
    own: Policy | None, listed: Policy | None, policy: Policy
) -> None:
    assert policy_among_backends(own, listed) == policy


def test_the_policy_of_a_list_is_the_rules_else_the_models_else_weighted() -> None:
    rules = (RuleEntry(0, targets=entries("a"), policy="cheapest"), RuleEntry(1, targets=entries("a", "p")))
    made = world(
        [model("a")],
        frontend("f", "a", policy="round-robin", rules=rules),
        frontend("g", "a"),
        pools=[pool("p", "least-loaded", a_1=2)],
    ).routes.models
    f = made["f"]
    assert (f.default.policy, f.default.all[0].policy) == ("round-robin", "round-robin")
    assert (f.by_rule[0].policy, f.by_rule[0].all[0].policy) == ("cheapest", "cheapest")
    assert [t.policy for t in f.by_rule[1].all] == ["round-robin", "least-loaded"]
    assert (made["g"].default.policy, made["g"].default.all[0].policy) == ("weighted", "cache-affinity")


def test_a_rule_without_targets_sends_to_the_models_own_by_its_policy() -> None:
    rules = (
        RuleEntry(0, tag="t", policy="round-robin"),
        RuleEntry(1, targets=entries("gone")),
        RuleEntry(2, action="deny", deny_status=403),
        RuleEntry(3, action="jump", jump="g"),
    )
    lists = world([model("a")], frontend("f", "a", rules=rules)).routes.models["f"].by_rule
    assert {at: ([t.name for t in found.all], found.policy) for at, found in lists.items()} == {
        0: (["a"], "round-robin"),
        1: ([], "weighted"),
    }


def test_lists_have_names_of_their_own() -> None:
    """A frontend model may be called as its target is: they do not share turns."""
    rules = (RuleEntry(0, targets=entries("a")), RuleEntry(1, targets=entries("a")))
    made = world([model("a", 2)], frontend("a", "a", rules=rules)).routes.models["a"]
    names = [made.default.name, *(found.name for found in made.by_rule.values()), made.default.all[0].name]
    assert len(set(names)) == len(names) == 4


def test_idle_backends_are_those_whose_provider_and_model_are_there() -> None:
    made = world([model("a", 2)], frontend("f", "a"))
    entry = made.backends["a-1"].entry
    snapshot = Snapshot(
        1,
        "h",
        0.0,
        backends=(
            entry,
            msgspec.structs.replace(entry, id="x", provider_id="gone"),
            msgspec.structs.replace(entry, id="y", provider_model_id="gone"),
        ),
        providers=(ProviderEntry("p", "gpu", "static", "http://127.0.0.1:1/v1", protocol="anthropic"),),
        provider_models=(model("a", 2),),
        frontend_models=(frontend("f", "a"),),
    )
    found = idle_backends(snapshot)
    assert set(found) == {"a-1"}
    idle = found["a-1"]
    assert (idle.inflight, idle.recent_latency(0), idle.is_in_rotation(0)) == (0, None, True)
    target = resolve(snapshot, found).models["f"].default.all[0]
    assert target.by_dialect["openai"] == ()
    assert target.by_dialect["anthropic"] == target.members
