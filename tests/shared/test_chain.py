"""A request's chain."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastllm_shared.chain import mean_inflight, route
from fastllm_shared.routing import Rule
from fastllm_shared.snapshot import Conditions, Policy, RuleEntry
from tests.shared.worlds import World, asked, chooser, entries, facts, frontend, model, world


def names(made: World, name: str = "f", *, may: bool = True, **changes: object) -> tuple[list[str], int]:
    found = route(made.routes, name, facts(), asked(3, **changes), chooser(), lambda _: may)
    return [target.name for target in found.chain], found.fallback_from


MODELS = [model("a"), model("b"), model("c"), model("d")]


def test_a_fallback_ends_the_chain_of_those_who_may_use_it() -> None:
    made = world(MODELS, frontend("f", "a"), frontend("net", ("c", 0), ("a", 0), ("b", 0)), fallback="net")
    assert names(made) == (["a", "c", "b"], 1)
    assert names(made, may=False) == (["a"], 1)
    assert names(made, "net") == (["c", "a", "b"], 3)


def test_a_fallback_is_asked_as_the_frontend_model_that_it_is() -> None:
    def net(*rules: RuleEntry) -> World:
        return world(
            MODELS,
            frontend("f", "a"),
            frontend("net", "b", rules=rules),
            frontend("other", "d"),
            fallback="net",
        )

    mine = Conditions(principals=("team-a",))
    assert names(net(RuleEntry(0, mine, targets=entries("c")))) == (["a", "c"], 1)
    assert names(net(RuleEntry(0, Conditions(stream=True), targets=entries("c")))) == (["a", "b"], 1)
    assert names(net(RuleEntry(0, mine, "jump", jump="other"))) == (["a", "d"], 1)
    assert names(net(RuleEntry(0, mine, "deny", deny_status=403))) == (["a"], 1)


def test_a_request_that_is_denied_has_no_chain() -> None:
    deny = RuleEntry(0, Conditions(), "deny", deny_status=413, deny_message="too long")
    made = world(MODELS, frontend("f", "a", rules=(deny,)), frontend("net", "b"), fallback="net")
    assert names(made) == ([], 0)


def test_what_cannot_hold_the_request_goes_to_the_end() -> None:
    models = [
        model("s", context_length=100),
        model("l", context_length=1000),
        model("x"),
        model("t", context_length=10),
    ]
    made = world(models, frontend("f", ("s", 1), ("t", 0), ("l", 0), ("x", 0)), frontend("g", "t", "s"))
    assert names(made, prompt_tokens=5)[0] == ["s", "t", "l", "x"]
    assert names(made, prompt_tokens=60, max_tokens=40)[0] == ["s", "l", "x", "t"]
    assert names(made, prompt_tokens=60, max_tokens=41)[0] == ["l", "x", "s", "t"]
    assert names(made, prompt_tokens=5000)[0] == ["x", "s", "t", "l"]
    assert sorted(names(made, "g", prompt_tokens=5000)[0]) == ["s", "t"]


@pytest.mark.parametrize(
    ("rule", "mean"),
    [
        (RuleEntry(0, targets=entries("a")), 3.0),
        (RuleEntry(0, targets=entries("a", "b", "a")), 4.0),
        (RuleEntry(0, targets=entries("gone")), None),
        (RuleEntry(0, targets=entries("out")), None),
        (RuleEntry(0), 6.0),
        (RuleEntry(0, action="deny", deny_status=429), 6.0),
        (RuleEntry(0, action="jump", jump="g"), 3.0),
        (RuleEntry(0, action="jump", jump="gone"), None),
    ],
)
def test_the_inflight_figure_of_a_rule(rule: RuleEntry, mean: float | None) -> None:
    made = world(
        [model("a", 3), model("b"), model("out")],
        frontend("f", "b", rules=(rule,)),
        frontend("g", "a"),
    )
    for id_, inflight in (("a-1", 2), ("a-2", 4), ("a-3", 99), ("b-1", 6), ("out-1", 1)):
        made.backends[id_].inflight = inflight
    made.backends["a-3"].out = made.backends["out-1"].out = True
    assert mean_inflight(made.routes, Rule("f", rule), "openai", 0.0) == mean


POLICIES: tuple[Policy, ...] = (
    "weighted",
    "cache-affinity",
    "least-loaded",
    "lowest-latency",
    "round-robin",
    "cheapest",
)
_STATES = st.tuples(
    st.integers(0, 3),  # weight
    st.sampled_from([0, 10, 1000]),  # context length, 0: not declared
    st.booleans(),  # out of rotation
    st.integers(0, 50),  # in flight
    st.none() | st.floats(0, 10),  # latency
)


@given(st.lists(_STATES, max_size=6), st.sampled_from(POLICIES), st.integers(0, 2**64 - 1))
def test_a_chain_is_the_list_with_one_in_front_and_what_is_too_small_behind(
    states: list[tuple[int, int, bool, int, float | None]], policy: Policy, key: int
) -> None:
    models = [
        model(f"t{at}", **({"context_length": length} if length else {}))
        for at, (_, length, *_) in enumerate(states)
    ]
    listed = [(f"t{at}", state[0]) for at, state in enumerate(states)]
    made = world(models, frontend("f", *listed, policy=policy))
    for at, (_, _, out, inflight, latency) in enumerate(states):
        backend = made.backends[f"t{at}-1"]
        backend.out, backend.inflight, backend.latency = out, inflight, latency
    found = route(made.routes, "f", facts(), asked(key, prompt_tokens=100), chooser(), lambda _: False)
    names = [target.name for target in found.chain]
    small = [f"t{at}" for at, state in enumerate(states) if state[1] == 10]
    fitting = [name for name, _ in listed if name not in small]
    if not fitting:
        fitting, small = small, []
    assert sorted(names) == sorted(name for name, _ in listed)
    assert names[len(fitting) :] == small
    assert [name for name in fitting if name != names[0]] == names[1 : len(fitting)] if names else True
    if names:
        up = [name for name in fitting if not states[int(name[1:])][2]] or fitting
        weighty = [name for name in up if states[int(name[1:])][0]]
        assert names[0] in (weighty or up[:1])
