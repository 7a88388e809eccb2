"""Which rule applies to a request. Pure; proxies and the dry run share it.

`decide` finds the rule, and with it a list of targets; what is made of that list is `chain`'s matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from fastllm_shared.conditions import Compiled, Known
from fastllm_shared.snapshot import FrontendModelEntry, Policy, RuleEntry

DENIED_STATUS: Final = 403
"""Of a rule that denies and does not say with what."""

DEFAULT_DENIAL: Final = "denied by a rule"
"""What a client is told by a rule that denies without a message of its own."""


class Rejected(msgspec.Struct, frozen=True):
    """A rule that did not apply, and the condition that failed; `jump`: its destination is no more. `model`
    is the frontend model that it is a rule of."""

    model: str
    position: int
    failed: str


class Decision(msgspec.Struct, frozen=True):
    """What applies to a request.

    `rule` is the position of the rule that decided, among those of the model that was asked for; `None`: its
    default targets apply. After a jump the targets are those of another model: of `model`, rule `position`,
    or its default targets where that is `None`. Without a jump these two say the same as `rule`.
    """

    model: str
    rule: int | None = None
    position: int | None = None
    policy: Policy | None = None
    tag: str | None = None
    denied_status: int | None = None
    denied_message: str | None = None
    rejected: tuple[Rejected, ...] = ()


class Rule:
    """A rule ready to be asked. Immutable; `decision` is what it comes to when it applies."""

    __slots__ = ("decision", "entry", "model", "when")

    def __init__(self, model: str, entry: RuleEntry, policy: Policy | None = None) -> None:
        self.model = model
        self.entry = entry
        self.when = Compiled(entry.when)
        denies = entry.action == "deny"
        self.decision = Decision(
            model=model,
            rule=entry.position,
            position=entry.position,
            policy=entry.policy or policy,
            tag=entry.tag,
            denied_status=(entry.deny_status or DENIED_STATUS) if denies else None,
            denied_message=entry.deny_message if denies else None,
        )


class Model:
    """A frontend model's rules, in order. Immutable; `decision` is what it comes to when none applies."""

    __slots__ = ("decision", "name", "rules")

    def __init__(self, entry: FrontendModelEntry) -> None:
        self.name = entry.name
        ordered = sorted(entry.rules, key=lambda rule: rule.position)
        self.rules = tuple(Rule(entry.name, rule, entry.policy) for rule in ordered)
        self.decision = Decision(entry.name, policy=entry.policy)


def compiled(entries: Iterable[FrontendModelEntry]) -> dict[str, Model]:
    """All frontend models by name, ready for `decide`."""
    return {entry.name: Model(entry) for entry in entries}


Inflight = Callable[[Rule], float | None]
"""The mean in-flight figure of the backends that a rule would send to; `None` when there are none."""


def decide(
    models: Mapping[str, Model],
    name: str,
    facts: Known,
    inflight: Inflight | None = None,
    *,
    explain: bool = True,
) -> Decision:
    """Which rule of the frontend model `name` applies, jumps followed. Raises `KeyError` for no such model.

    `inflight` is asked for rules that have such a condition; without it `facts.inflight_per_backend` counts
    for all of them. `explain` has the decision list the rules that did not apply.
    """
    rejected: list[Rejected] | None = [] if explain else None
    model = models[name]
    visited: tuple[str, ...] = (name,)
    first: int | None = None  # the rule that jumped first
    tag: str | None = None  # of the last one that jumped with a tag
    while True:
        rule = _first(models, model, facts, inflight, rejected, visited)
        if rule is None or rule.entry.action != "jump":
            break
        entry = rule.entry
        model = models[entry.jump or ""]
        visited = (*visited, model.name)
        first = entry.position if first is None else first
        tag = entry.tag or tag
    decision = model.decision if rule is None else rule.decision
    if first is None and not rejected:
        return decision
    return msgspec.structs.replace(
        decision,
        rule=decision.rule if first is None else first,
        tag=decision.tag or tag,
        rejected=tuple(rejected or ()),
    )


def _first(
    models: Mapping[str, Model],
    model: Model,
    facts: Known,
    inflight: Inflight | None,
    rejected: list[Rejected] | None,
    visited: tuple[str, ...],
) -> Rule | None:
    """The first rule of `model` that applies."""
    for rule in model.rules:
        when = rule.when
        failed = when.failed(facts, _inflight(rule, facts, inflight) if when.asks_inflight else None)
        if failed is None:
            jump = rule.entry.jump
            # A loop is refused when it is written; should one be there all the same, it leads nowhere.
            if rule.entry.action != "jump" or (jump in models and jump not in visited):
                return rule
            failed = "jump"
        if rejected is not None:
            rejected.append(Rejected(model.name, rule.entry.position, failed))
    return None


def _inflight(rule: Rule, facts: Known, inflight: Inflight | None) -> float | None:
    return facts.inflight_per_backend if inflight is None else inflight(rule)
