"""A request's chain: the targets that it may go to, in order. Pure; proxies and the dry run share it.

rules of the frontend model   `routing.decide`: the first that holds, jumps followed
its list of targets           `listed`: of the rule that decided, or the model's own
the chosen one, then the rest `policies.Chooser.arrange`
the deployment's fallback     after all of them, for callers that hold a grant on it

The fallback is a frontend model and is asked as one: its rules are evaluated for this request, and its own
policy orders what they lead to. A rule of it that denies adds nothing to the chain, and refuses nothing. What
the chain holds already is not added again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from fastllm_shared.conditions import Known
from fastllm_shared.policies import Asked, Chooser
from fastllm_shared.routing import Decision, Inflight, Rule, decide
from fastllm_shared.targets import Dialect, Live, Routes, Target, Targets

B = TypeVar("B", bound=Live)


class Route(msgspec.Struct, Generic[B], frozen=True):
    """Where a request goes. The last targets of `chain` are those that the fallback added, from
    `fallback_from` on; a request that is denied has none at all."""

    decision: Decision
    chain: tuple[Target[B], ...]
    fallback_from: int


def route(
    routes: Routes[B],
    name: str,
    facts: Known,
    asked: Asked,
    chooser: Chooser,
    may_name: Callable[[str], bool],
    inflight: Inflight | None = None,
    *,
    explain: bool = True,
) -> Route[B]:
    """Where a request for the frontend model `name` goes; `may_name` says which others its caller may use.
    Without `inflight` the facts' own figure counts for every rule. `explain` has the decision list the rules
    that did not apply. Raises `KeyError` for no such model."""
    decision = decide(routes.rules, name, facts, inflight, explain=explain)
    if decision.denied_status is not None:
        return Route(decision, (), 0)
    own = chooser.arrange(listed(routes, decision), asked)
    fallback = routes.fallback
    if fallback is None or fallback.name == name or not may_name(fallback.name):
        return Route(decision, own, len(own))
    further = decide(routes.rules, fallback.name, facts, inflight, explain=False)
    if further.denied_status is not None:
        return Route(decision, own, len(own))
    known = {target.name for target in own}
    added = chooser.arrange(listed(routes, further), asked)
    return Route(decision, (*own, *(t for t in added if t.name not in known)), len(own))


def listed(routes: Routes[B], decision: Decision) -> Targets[B]:
    """The list of targets that a decision leads to. It must not be one to deny."""
    model = routes.models[decision.model]
    return model.default if decision.position is None else model.by_rule[decision.position]


def mean_inflight(routes: Routes[B], rule: Rule, dialect: Dialect, now: float) -> float | None:
    """The in-flight figure that a rule's condition is about: the mean over the backends in rotation that the
    rule would send to, each counted once; for a rule that jumps, those of its destination's own targets, for
    one that denies, those of its model's. `None` when there are none."""
    entry = rule.entry
    jumps = entry.action == "jump"
    model = routes.models.get(entry.jump or "" if jumps else rule.model)
    if model is None:
        return None
    targets = model.default if jumps else model.by_rule.get(entry.position, model.default)
    counts = {
        member.backend.id: member.backend.inflight
        for target in targets.all
        for member in target.by_dialect[dialect]
        if member.backend.is_in_rotation(now)
    }
    return sum(counts.values()) / len(counts) if counts else None
