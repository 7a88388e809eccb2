"""What a case of the routing table is made of."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from fastllm_shared.snapshot import Conditions, Policy, RuleEntry
from tests.shared.worlds import World, entries, frontend, model, pool, world


class Case(msgspec.Struct, frozen=True):
    """`rule` is the position that decides, `chain` the targets in order, separated by blanks; `by` why no
    rule before it did: `position:condition`, after a jump with the model's name in front."""

    name: str
    made: World
    rule: int | None
    chain: str
    facts: dict[str, Any] = {}
    asked: dict[str, Any] = {}
    by: str = ""
    tag: str | None = None
    denied: int | None = None
    may: tuple[str, ...] = ()
    inflight: dict[str, int] = {}
    latency: dict[str, float] = {}
    out: tuple[str, ...] = ()
    model: str = "f"


MODELS = (
    *(model(name) for name in "abcd"),
    model("wide", 2),
    model("small", context_length=100),
    model("large", context_length=100_000),
    model("cheap", input_price_per_mtok=1, output_price_per_mtok=10),
    model("dear", input_price_per_mtok=10, output_price_per_mtok=1),
)
POOLS = (pool("pair", "least-loaded", a_1=1, b_1=1), pool("empty", "weighted"))


def rule(at: int, *targets: str | tuple[str, int], **when: Any) -> RuleEntry:
    return RuleEntry(at, Conditions(**when), targets=entries(*targets))


def rules(*listed: RuleEntry, default: tuple[str, ...] = ("d",), policy: Policy | None = None) -> World:
    return world(MODELS, frontend("f", *default, rules=listed, policy=policy), pools=POOLS)


def when(**conditions: Any) -> World:
    """One rule to `a`; the default is `d`."""
    return rules(rule(0, "a", **conditions))


def yes(name: str, made: World, **given: Any) -> Case:
    return Case(name, made, 0, "a", given)


def no(name: str, made: World, failed: str, **given: Any) -> Case:
    return Case(name, made, None, "d", given, by=f"0:{failed}")


def at(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


def split(policy: Policy | None, *targets: str | tuple[str, int]) -> World:
    return world(MODELS, frontend("f", *targets, policy=policy), pools=POOLS)
