"""What a proxy would do with a request, worked out from rows: the routing engine that proxies run, over
backends that are all up and have nothing to do. Pure: no database, no clock.

What proxies are served is decided by `snapshot.build`, and what they make of it by the shared engine; added
here is only what neither keeps: the candidates that are not used, and why.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from fastllm_control.snapshot import Built, effective_state, is_out_by_condition
from fastllm_control.snapshot_rows import BackendRow, ProviderRow, Rows
from fastllm_shared import targets
from fastllm_shared.chain import Route, mean_inflight, route
from fastllm_shared.conditions import Facts
from fastllm_shared.given import Given
from fastllm_shared.policies import Chooser
from fastllm_shared.routing import DEFAULT_DENIAL, Decision, Inflight, Rule, decide
from fastllm_shared.snapshot import Policy, PrincipalEntry, State, TargetEntry
from fastllm_shared.targets import Dialect, Idle, idle_backends, resolve

Routes: TypeAlias = targets.Routes[Idle]
Target: TypeAlias = targets.Target[Idle]

WhyBackend = Literal[
    "disabled", "draining", "pending", "drifted", "degraded", "credential_unreadable", "dialect"
]
WhyTarget = Literal["unresolved", "no_backends", "no_usable_backend"]
WhyFallback = Literal["not_granted", "asked_for", "deleted", "denied", "denied_by_its_rule", "nothing_new"]


class Candidate(msgspec.Struct, frozen=True):
    """A backend of a target. `skipped` says why no request like this is sent to it."""

    backend_id: str
    provider: str
    upstream_model: str
    state: State
    condition: str
    skipped: WhyBackend | None


class Link(msgspec.Struct, frozen=True):
    """A target of the chain, its usable backends first, in the order in which they would be tried. `policy`
    chooses among them; `fits`: whether its context holds the request, `null` when it declares none."""

    target: str
    kind: Literal["provider_model", "pool"] | None
    weight: int
    policy: Policy | None
    context_length: int | None
    fits: bool | None
    fallback: bool
    backends: list[Candidate]
    skipped: WhyTarget | None


class Rejection(msgspec.Struct, frozen=True):
    """A rule that did not apply: the condition that failed, or `jump` when its destination is no more."""

    position: int
    failed: str
    model: str


class Jump(msgspec.Struct, frozen=True):
    """The rule at `position` of `model` handed on to the rules of `to`."""

    model: str
    position: int
    to: str


class Denial(msgspec.Struct, frozen=True):
    status: int
    message: str


class Fallback(msgspec.Struct, frozen=True):
    """The deployment's fallback; `skipped` says why it adds nothing to this chain."""

    frontend_model: str
    skipped: WhyFallback | None


class Considered(msgspec.Struct, frozen=True):
    """What the answer is an answer to. Token figures are the estimates that were used, `null`: not known.
    `conversation_known`: whether a body said how the conversation begins, which is what splits by weight and
    `cache-affinity` go by."""

    principal: str
    roles: list[str]
    endpoint: str
    dialect: Dialect
    stream: bool
    prompt_tokens: int | None
    max_tokens: int | None
    at: datetime.datetime
    budget_used_percent: float | None
    inflight_per_backend: float | None
    conversation_known: bool


class Preview(msgspec.Struct, frozen=True):
    """`decided_in` is the frontend model whose list of targets applies: the one that was asked for, unless
    rules jumped; `policy` chooses among them. `granted`: whether the principal may name the model at all."""

    rule: int | None
    tag: str | None
    denied: Denial | None
    rejected: list[Rejection]
    jumps: list[Jump]
    decided_in: str
    policy: Policy
    granted: bool
    fallback: Fallback | None
    chain: list[Link]
    request: Considered


def preview(
    rows: Rows,
    built: Built,
    model: str,
    principal: PrincipalEntry,
    request: Considered,
    *,
    facts: Facts,
    asked: Given,
) -> Preview:
    """What happens to a request for the frontend model `model`. Raises `KeyError` when `built` has none."""
    snapshot = built.snapshot
    routes = resolve(snapshot, idle_backends(snapshot))
    granted = frozenset(principal.models)
    # The first of equals, and nobody's turn before: what is left to chance or to load is told so.
    chooser = Chooser(lambda equals: equals[0], lambda: 0.0)

    def may_name(name: str) -> bool:
        return principal.all_models or name in granted

    def inflight(rule: Rule) -> float | None:
        return _inflight(routes, rule, facts, asked.dialect)

    found = route(routes, model, facts, asked, chooser, may_name, inflight)
    decision = found.decision
    denied = decision.denied_status
    links = _Links(rows, built, routes, asked, chooser)
    fallback = None
    if snapshot.fallback_model is not None:
        why = _why_no_fallback(snapshot.fallback_model, model, found, may_name, routes)
        if why == "nothing_new" and _denies(routes, snapshot.fallback_model, facts, inflight):
            why = "denied_by_its_rule"
        fallback = Fallback(snapshot.fallback_model, why)
    return Preview(
        rule=decision.rule,
        tag=decision.tag,
        denied=None if denied is None else Denial(denied, decision.denied_message or DEFAULT_DENIAL),
        rejected=[Rejection(one.position, one.failed, one.model) for one in decision.rejected],
        jumps=list(_jumps(routes, model, decision)),
        decided_in=decision.model,
        policy=decision.policy or "weighted",
        granted=may_name(model),
        fallback=fallback,
        chain=[] if denied is not None else links.of(found),
        request=request,
    )


def _inflight(routes: Routes, rule: Rule, facts: Facts, dialect: Dialect) -> float | None:
    """The figure that was given, for every rule that has a backend to count it on."""
    idle = mean_inflight(routes, rule, dialect, 0.0)
    given = facts.inflight_per_backend
    return idle if idle is None or given is None else given


def _jumps(routes: Routes, model: str, decision: Decision) -> Iterator[Jump]:
    """The way from the model that was asked for to the one whose list applies: of each on it the first rule
    that was not rejected jumped."""
    rejected = {(one.model, one.position) for one in decision.rejected}
    here = model
    while here != decision.model:
        rule = next(r for r in routes.rules[here].rules if (here, r.entry.position) not in rejected)
        assert rule.entry.jump is not None
        yield Jump(here, rule.entry.position, rule.entry.jump)
        here = rule.entry.jump


def _why_no_fallback(
    named: str, model: str, found: Route[Idle], may_name: Callable[[str], bool], routes: Routes
) -> WhyFallback | None:
    if routes.fallback is None:
        return "deleted"
    if named == model:
        return "asked_for"
    if not may_name(named):
        return "not_granted"
    if found.decision.denied_status is not None:
        return "denied"
    return None if found.fallback_from < len(found.chain) else "nothing_new"


def _denies(routes: Routes, model: str, facts: Facts, inflight: Inflight) -> bool:
    return decide(routes.rules, model, facts, inflight, explain=False).denied_status is not None


class _Links:
    """Builds the chain as it is shown."""

    def __init__(self, rows: Rows, built: Built, routes: Routes, asked: Given, chooser: Chooser) -> None:
        self._routes = routes
        self._asked = asked
        self._chooser = chooser
        self._providers = {row.id: row for row in rows.providers}
        self._backends = {str(row.id): row for row in rows.backends}
        self._unreadable = {lost for dropped in built.dropped for lost in dropped.backends}
        self._listed = _listed_backends(rows)
        self._kinds: dict[str, Literal["provider_model", "pool"]] = {
            **{row.name: "provider_model" for row in rows.models},
            **{row.name: "pool" for row in rows.pools},
        }

    def of(self, found: Route[Idle]) -> list[Link]:
        """The targets of the chain in their order; behind those of each list, its names that lead nowhere."""
        decision = found.decision
        own = [self._link(target, fallback=False) for target in found.chain[: found.fallback_from]]
        added = [self._link(target, fallback=True) for target in found.chain[found.fallback_from :]]
        return [*own, *self._unresolved(decision), *added]

    def _link(self, target: Target, *, fallback: bool) -> Link:
        usable = target.by_dialect[self._asked.dialect]
        order = []
        left = list(usable)
        while left:
            chosen = self._chooser.member(left, target.policy, self._asked, target.name)
            order.append(chosen.backend.id)
            left = [member for member in left if member is not chosen]
        listed = self._listed.get(target.name, ())
        others = [backend_id for backend_id in listed if backend_id not in order]
        length = target.context_length
        return Link(
            target=target.name,
            kind=self._kinds.get(target.name),
            weight=target.weight,
            policy=target.policy,
            context_length=length,
            fits=None if length is None else not self._asked.exceeds(length),
            fallback=fallback,
            backends=[
                *(self._candidate(backend_id, used=True) for backend_id in order),
                *(self._candidate(backend_id, used=False) for backend_id in others),
            ],
            skipped=None if order else "no_usable_backend" if listed else "no_backends",
        )

    def _candidate(self, backend_id: str, *, used: bool) -> Candidate:
        row = self._backends[backend_id]
        provider = self._providers[row.provider_id]
        return Candidate(
            backend_id=backend_id,
            provider=provider.name,
            upstream_model=row.upstream_model,
            state=effective_state(row, provider),
            condition=row.condition,
            skipped=None if used else self._why(row, provider),
        )

    def _why(self, row: BackendRow, provider: ProviderRow) -> WhyBackend:
        if str(row.id) in self._unreadable:
            return "credential_unreadable"
        state = effective_state(row, provider)
        if state != "active":
            return state
        if is_out_by_condition(row, provider):
            return _finding(row)
        return "dialect"

    def _unresolved(self, decision: Decision) -> list[Link]:
        entry = self._routes.models[decision.model].entry
        named: Sequence[TargetEntry] = entry.targets
        for rule in entry.rules:
            if rule.position == decision.position:
                named = rule.targets or entry.targets
        return [
            Link(
                target=one.target,
                kind=None,
                weight=one.weight,
                policy=None,
                context_length=None,
                fits=None,
                fallback=False,
                backends=[],
                skipped="unresolved",
            )
            for one in named
            if one.target not in self._kinds
        ]


def _finding(row: BackendRow) -> WhyBackend:
    if row.condition == "pending":
        return "pending"
    # Its own finding, else its provider's.
    return "drifted" if row.condition == "drifted" else "degraded"


def _listed_backends(rows: Rows) -> Mapping[str, Sequence[str]]:
    """By target's name, the ids of all backends that it stands for, whether they may be used or not."""
    by_model: dict[str, list[str]] = {}
    for backend in rows.backends:
        by_model.setdefault(str(backend.provider_model_id), []).append(str(backend.id))
    found: dict[str, Sequence[str]] = {row.name: by_model.get(str(row.id), ()) for row in rows.models}
    members: dict[str, dict[str, None]] = {}
    for member in rows.pool_members:
        ids = (
            found.get(member.provider_model or "", ())
            if member.backend_id is None
            else [str(member.backend_id)]
        )
        members.setdefault(str(member.pool_id), {}).update(dict.fromkeys(ids))
    return {**found, **{row.name: tuple(members.get(str(row.id), ())) for row in rows.pools}}
