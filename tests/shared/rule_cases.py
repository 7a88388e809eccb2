"""The routing table: which rule decides, and what it does."""

from __future__ import annotations

from typing import Any

from fastllm_shared.snapshot import Conditions, RuleEntry
from tests.shared.cases import MODELS, POOLS, Case, rule, rules
from tests.shared.worlds import World, entries, frontend, world

ORDER = [
    Case("rules: none", rules(), None, "d"),
    Case("rules: one without conditions", rules(rule(0, "a")), 0, "a"),
    Case(
        "rules: the first that holds",
        rules(rule(0, "a", stream=True), rule(1, "b"), rule(2, "c")),
        1,
        "b",
        by="0:stream",
    ),
    Case(
        "rules: by position, not as listed",
        rules(rule(2, "c"), rule(0, "a", stream=True), rule(1, "b")),
        1,
        "b",
        by="0:stream",
    ),
    Case(
        "rules: all conditions must hold, the first that fails is named",
        rules(rule(0, "a", principals=("team-a",), stream=True, min_budget_used_percent=1)),
        None,
        "d",
        by="0:stream",
    ),
    Case(
        "rules: none holds",
        rules(rule(0, "a", stream=True), rule(1, "b", roles=("x",))),
        None,
        "d",
        by="0:stream 1:roles",
    ),
    Case("rules: without targets, the model's own", rules(RuleEntry(0, tag="t")), 0, "d", tag="t"),
    Case("rules: targets that are no more", rules(rule(0, "gone")), 0, ""),
    Case("rules: what is left of them", rules(rule(0, "gone", "b", "gone-too")), 0, "b"),
    Case("rules: a pool", rules(rule(0, "pair")), 0, "pair"),
    Case("rules: a pool of nobody keeps its name", rules(rule(0, ("empty", 1), ("b", 0))), 0, "b empty"),
    Case("targets: none", rules(default=()), None, ""),
    Case("tag: of the rule", rules(RuleEntry(0, targets=entries("a"), tag="batch")), 0, "a", tag="batch"),
    Case(
        "tag: not of one that fails",
        rules(RuleEntry(0, Conditions(stream=True), tag="x")),
        None,
        "d",
        by="0:stream",
    ),
    Case("deny", rules(RuleEntry(0, action="deny", deny_status=413, deny_message="no")), 0, "", denied=413),
    Case("deny: 403 unless said", rules(RuleEntry(0, action="deny")), 0, "", denied=403),
    Case("deny: with a tag", rules(RuleEntry(0, action="deny", tag="shed")), 0, "", denied=403, tag="shed"),
    Case(
        "deny: not when another rule was first",
        rules(rule(0, "a", principals=("team-a",)), RuleEntry(1, action="deny")),
        0,
        "a",
    ),
]


def jump(at: int, to: str, tag: str | None = None, **when: Any) -> RuleEntry:
    return RuleEntry(at, Conditions(**when), action="jump", jump=to, tag=tag)


def jumping(
    *first: RuleEntry, second: tuple[RuleEntry, ...] = (), third: tuple[RuleEntry, ...] = ()
) -> World:
    return world(
        MODELS,
        frontend("f", "a", rules=first),
        frontend("g", "b", rules=second),
        frontend("h", "c", rules=third),
        pools=POOLS,
    )


JUMPS = [
    Case("jump: to the other's targets", jumping(jump(0, "g")), 0, "b"),
    Case("jump: to a rule of the other", jumping(jump(0, "g"), second=(rule(0, "c"),)), 0, "c"),
    Case(
        "jump: when no rule of the other holds",
        jumping(jump(0, "g"), second=(rule(0, "c", stream=True),)),
        0,
        "b",
        by="g0:stream",
    ),
    Case("jump: only when it holds", jumping(jump(0, "g", stream=True)), None, "a", by="0:stream"),
    Case(
        "jump: the rule of the model asked for",
        jumping(rule(0, "d", stream=True), jump(1, "g"), second=(rule(0, "c"),)),
        1,
        "c",
        by="0:stream",
    ),
    Case("jump: twice", jumping(jump(0, "g"), second=(jump(0, "h"),)), 0, "c"),
    Case(
        "jump: twice, to a rule", jumping(jump(0, "g"), second=(jump(3, "h"),), third=(rule(7, "d"),)), 0, "d"
    ),
    Case("jump: destination gone", jumping(jump(0, "x"), rule(1, "d")), 1, "d", by="0:jump"),
    Case("jump: destination gone, nothing further", jumping(jump(0, "x")), None, "a", by="0:jump"),
    Case(
        "jump: gone behind a jump",
        jumping(jump(0, "g"), second=(jump(0, "x"), rule(1, "c"))),
        0,
        "c",
        by="g0:jump",
    ),
    Case("jump: to itself leads nowhere", jumping(jump(0, "f")), None, "a", by="0:jump"),
    Case("jump: a loop leads nowhere", jumping(jump(0, "g"), second=(jump(0, "f"),)), 0, "b", by="g0:jump"),
    Case(
        "jump: a loop of three",
        jumping(jump(0, "g"), second=(jump(0, "h"),), third=(jump(0, "g"),)),
        0,
        "c",
        by="h0:jump",
    ),
    Case(
        "jump: into a deny",
        jumping(jump(0, "g"), second=(RuleEntry(0, action="deny", deny_status=418),)),
        0,
        "",
        denied=418,
    ),
    Case("jump: its tag", jumping(jump(0, "g", tag="mine")), 0, "b", tag="mine"),
    Case(
        "jump: the destination's tag wins",
        jumping(jump(0, "g", tag="mine"), second=(RuleEntry(0, tag="its"),)),
        0,
        "b",
        tag="its",
    ),
    Case("jump: nobody needs a grant there", jumping(jump(0, "g")), 0, "b", may=()),
    Case(
        "jump: inflight of the destination",
        jumping(jump(0, "g", max_inflight_per_backend=1)),
        None,
        "a",
        inflight={"b-1": 2},
        by="0:max_inflight_per_backend",
    ),
]
RULES = [*ORDER, *JUMPS]
