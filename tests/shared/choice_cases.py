"""The routing table: which target is first, and what follows."""

from __future__ import annotations

from typing import Any

from fastllm_shared.snapshot import RuleEntry
from tests.shared.cases import MODELS, POOLS, Case, rule, rules, split
from tests.shared.rule_cases import jump
from tests.shared.worlds import World, entries, frontend, world

CHOICES = [
    Case("weighted: a spare is last", split(None, ("a", 0), ("b", 1)), None, "b a"),
    Case("weighted: spares only, in order", split(None, ("b", 0), ("a", 0)), None, "b a"),
    Case(
        "weighted: load does not count",
        split("weighted", ("a", 1), ("b", 0)),
        None,
        "a b",
        inflight={"a-1": 99},
    ),
    Case(
        "weighted: one that is out falls to the spare",
        split(None, ("a", 1), ("b", 0)),
        None,
        "b a",
        out=("a-1",),
    ),
    Case(
        "weighted: all out, as if none were", split(None, ("a", 1), ("b", 0)), None, "a b", out=("a-1", "b-1")
    ),
    Case("least-loaded", split("least-loaded", "a", "b", "c"), None, "b a c", inflight={"a-1": 2, "c-1": 1}),
    Case(
        "least-loaded: per weight",
        split("least-loaded", ("a", 4), "b"),
        None,
        "a b",
        inflight={"a-1": 3, "b-1": 1},
    ),
    Case(
        "least-loaded: the best of a target's",
        split("least-loaded", "a", "wide"),
        None,
        "wide a",
        inflight={"a-1": 1, "wide-1": 9},
    ),
    Case(
        "least-loaded: by whoever is up",
        split("least-loaded", "a", "wide"),
        None,
        "a wide",
        inflight={"a-1": 1, "wide-1": 9},
        out=("wide-2",),
    ),
    Case("lowest-latency", split("lowest-latency", "a", "b"), None, "b a", latency={"a-1": 0.5, "b-1": 0.1}),
    Case(
        "lowest-latency: the less loaded of equals",
        split("lowest-latency", "a", "b"),
        None,
        "b a",
        latency={"a-1": 0.1, "b-1": 0.112},
        inflight={"a-1": 1},
    ),
    Case(
        "lowest-latency: beyond an eighth",
        split("lowest-latency", "a", "b"),
        None,
        "a b",
        latency={"a-1": 0.1, "b-1": 0.113},
        inflight={"a-1": 9},
    ),
    Case(
        "lowest-latency: no sample is no zero",
        split("lowest-latency", "a", "b"),
        None,
        "b a",
        latency={"b-1": 0.1},
        inflight={"a-1": 1},
    ),
    Case("round-robin: the first begins", split("round-robin", "b", "a", "c"), None, "b a c"),
    Case("round-robin: spares have no turn", split("round-robin", ("b", 0), "a"), None, "a b"),
    Case(
        "cheapest: long prompts",
        split("cheapest", "dear", "cheap"),
        None,
        "cheap dear",
        asked={"prompt_tokens": 9000, "max_tokens": 9},
    ),
    Case(
        "cheapest: long answers",
        split("cheapest", "cheap", "dear"),
        None,
        "dear cheap",
        asked={"prompt_tokens": 9, "max_tokens": 9000},
    ),
    Case(
        "cheapest: an answer of unknown length",
        split("cheapest", "cheap", "dear"),
        None,
        "dear cheap",
        asked={"prompt_tokens": 9},
    ),
    Case(
        "cheapest: unpriced last", split("cheapest", "a", "dear"), None, "dear a", asked={"prompt_tokens": 9}
    ),
    Case(
        "cheapest: next when it is out",
        split("cheapest", "cheap", "a", "dear"),
        None,
        "cheap a dear",
        asked={"prompt_tokens": 9},
        out=("dear-1",),
    ),
    Case(
        "policy: the rule's",
        rules(RuleEntry(0, targets=entries("a", "b"), policy="least-loaded"), policy="round-robin"),
        0,
        "b a",
        inflight={"a-1": 1},
    ),
    Case(
        "policy: else the model's",
        rules(rule(0, "a", "b"), policy="least-loaded"),
        0,
        "b a",
        inflight={"a-1": 1},
    ),
    Case(
        "policy: after a jump the destination's",
        world(
            MODELS,
            frontend("f", "d", policy="round-robin", rules=(jump(0, "g"),)),
            frontend("g", "a", "b", policy="least-loaded"),
        ),
        0,
        "b a",
        inflight={"a-1": 1},
    ),
    Case(
        "context: fits",
        split("round-robin", "small", "large"),
        None,
        "small large",
        asked={"prompt_tokens": 60, "max_tokens": 40},
    ),
    Case(
        "context: one token too many",
        split("round-robin", "small", "large"),
        None,
        "large small",
        asked={"prompt_tokens": 60, "max_tokens": 41},
    ),
    Case(
        "context: to the end, behind those in order",
        split("round-robin", "small", "a", "large"),
        None,
        "a large small",
        asked={"prompt_tokens": 101},
    ),
    Case(
        "context: not declared holds anything",
        split(None, ("a", 1), ("small", 0)),
        None,
        "a small",
        asked={"prompt_tokens": 10**9},
    ),
    Case(
        "context: nobody holds it",
        split("round-robin", "small", "large"),
        None,
        "small large",
        asked={"prompt_tokens": 10**9},
    ),
    Case(
        "context: before weights",
        split(None, ("small", 1), ("large", 0)),
        None,
        "large small",
        asked={"prompt_tokens": 101},
    ),
    Case("context: alone it is tried", split(None, "small"), None, "small", asked={"prompt_tokens": 101}),
]


def net(*targets: str, fallback: str = "net", rules: tuple[RuleEntry, ...] = (), **model: Any) -> World:
    return world(
        MODELS,
        frontend("f", *targets, **model),
        frontend("net", "c", "d", rules=rules, policy="round-robin"),
        frontend("other", "b"),
        pools=POOLS,
        fallback=fallback,
    )


FALLBACKS = [
    Case("fallback: with a grant", net("a"), None, "a c d", may=("net",)),
    Case("fallback: without", net("a"), None, "a", may=("other",)),
    Case("fallback: gone", net("a", fallback="gone"), None, "a", may=("gone",)),
    Case("fallback: of nothing", net("nothing"), None, "c d", may=("net",)),
    Case("fallback: nothing twice", net("d"), None, "d c", may=("net",)),
    Case("fallback: asked for itself", net("a"), None, "c d", may=("net",), model="net"),
    Case(
        "fallback: after a rule of one's own",
        world(
            MODELS,
            frontend("f", "a", rules=(rule(0, "b"),)),
            frontend("net", "c"),
            fallback="net",
        ),
        0,
        "b c",
        may=("net",),
    ),
    Case(
        "fallback: its rules count",
        net("a", rules=(rule(0, "b", principals=("team-a",)),)),
        None,
        "a b",
        may=("net",),
    ),
    Case(
        "fallback: its rules may not hold",
        net("a", rules=(rule(0, "b", stream=True),)),
        None,
        "a c d",
        may=("net",),
    ),
    Case("fallback: its jump", net("a", rules=(jump(0, "other"),)), None, "a b", may=("net",)),
    Case(
        "fallback: its deny adds nothing",
        net("a", rules=(RuleEntry(0, action="deny"),)),
        None,
        "a",
        may=("net",),
    ),
    Case(
        "fallback: not for who is denied",
        world(
            MODELS,
            frontend("f", "a", rules=(RuleEntry(0, action="deny"),)),
            frontend("net", "c"),
            fallback="net",
        ),
        0,
        "",
        denied=403,
        may=("net",),
    ),
    Case(
        "fallback: what does not fit stays before it",
        net("small"),
        None,
        "small c d",
        asked={"prompt_tokens": 101},
        may=("net",),
    ),
    Case(
        "fallback: its tag is not the request's",
        net("a", rules=(RuleEntry(0, tag="x", targets=entries("b")),)),
        None,
        "a b",
        may=("net",),
    ),
]
CHAINS = [*CHOICES, *FALLBACKS]
