"""Whatever is configured and asked: what a proxy does while all backends are up is what the shared engine
says of the snapshot alone."""

from __future__ import annotations

import json
from collections import Counter
from random import Random
from typing import Any

import msgspec

from fastllm_proxy.backends import Backend
from fastllm_proxy.balancer import Balancer
from fastllm_proxy.candidates import Candidates
from fastllm_proxy.errors import Refused
from fastllm_proxy.gate import Gates
from fastllm_proxy.routing import route
from fastllm_proxy.view import Caller, build_view
from fastllm_shared.chain import mean_inflight
from fastllm_shared.chain import route as said
from fastllm_shared.conditions import Facts
from fastllm_shared.given import given as spoken_of
from fastllm_shared.policies import Chooser
from fastllm_shared.snapshot import (
    BackendEntry,
    Conditions,
    FrontendModelEntry,
    Policy,
    PoolEntry,
    PoolMember,
    PrincipalEntry,
    ProviderModelEntry,
    RuleEntry,
    Snapshot,
    TargetEntry,
)
from fastllm_shared.targets import idle_backends, resolve
from tests.proxy.parts import CALLER, exchange, live_backend
from tests.proxy.rig import provider

FRONTENDS = ("f", "g", "h")
BACKENDS = tuple(range(1, 7))
MODELS = tuple(f"m{n}" for n in range(4))
POLICIES: tuple[Policy, ...] = (
    "weighted",
    "cache-affinity",
    "least-loaded",
    "lowest-latency",
    "round-robin",
    "cheapest",
)


def conditions(chance: Random) -> Conditions:
    """One or two, mostly: with many no rule would ever apply."""
    possible: dict[str, list[Any]] = {
        "principals": [("team-a",), ("team-b",)],
        "roles": [("gold",)],
        "min_prompt_tokens": [0, 20, 40],
        "max_max_tokens": [0, 30, 60],
        "stream": [True, False],
        "headers": [{"X-Tier": "batch"}],
        "min_budget_used_percent": [0, 1],
        "max_inflight_per_backend": [0, 2],
        "after": ["00:00", "08:30", "22:00"],
        "before": ["06:00", "17:00"],
        "days": [("mon", "tue", "wed", "thu", "fri"), ("sat", "sun")],
    }
    names = chance.sample(sorted(possible), chance.choice([0, 1, 1, 2, 3]))
    zone = chance.choice([None, "Europe/Brussels"])
    return Conditions(**{name: chance.choice(possible[name]) for name in names}, timezone=zone)


def targets(chance: Random) -> tuple[TargetEntry, ...]:
    names = chance.sample([*MODELS, "pool", "gone"], chance.randrange(5))
    return tuple(TargetEntry(name, chance.randrange(4)) for name in names)


def rule(chance: Random, position: int) -> RuleEntry:
    made = RuleEntry(position, conditions(chance), tag=chance.choice([None, f"tag-{position}"]))
    drawn = chance.random()
    if drawn < 0.1:
        return msgspec.structs.replace(made, action="deny", deny_status=418)
    if drawn < 0.3:
        return msgspec.structs.replace(made, action="jump", jump=chance.choice([*FRONTENDS, "gone"]))
    return msgspec.structs.replace(made, targets=targets(chance), policy=chance.choice([None, *POLICIES]))


def frontend(chance: Random, name: str) -> FrontendModelEntry:
    rules = tuple(rule(chance, position) for position in range(chance.randrange(4)))
    policy = chance.choice([None, *POLICIES])
    return FrontendModelEntry(name, name, 0.0, policy, rules=rules, targets=targets(chance))


def configuration(chance: Random) -> Snapshot:
    owners = {number: chance.choice(MODELS) for number in BACKENDS}
    pooled = chance.sample(BACKENDS, chance.randrange(len(BACKENDS)))
    members = tuple(PoolMember(f"backend-{n}", chance.randrange(3)) for n in pooled)
    return Snapshot(
        1,
        "h",
        0.0,
        providers=tuple(provider(number, "http://127.0.0.1:1/v1") for number in BACKENDS),
        backends=tuple(
            BackendEntry(f"backend-{n}", f"provider-{n}", owner, "up") for n, owner in owners.items()
        ),
        provider_models=tuple(
            ProviderModelEntry(
                name,
                name,
                context_length=chance.choice([None, 20, 40, 60]),
                input_price_per_mtok=chance.choice([None, 0, 1, 5]),
                output_price_per_mtok=chance.choice([None, 0, 1, 5]),
                backends=tuple(f"backend-{n}" for n, owner in owners.items() if owner == name),
            )
            for name in MODELS
        ),
        pools=(PoolEntry("pool", "pool", chance.choice(POLICIES), members),),
        frontend_models=tuple(frontend(chance, name) for name in FRONTENDS),
        fallback_model=chance.choice([None, *FRONTENDS]),
    )


class Request(msgspec.Struct, frozen=True):
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    now: float
    roles: tuple[str, ...]
    grants: frozenset[str]


def request(chance: Random) -> Request:
    body: dict[str, Any] = {"model": "f", "stream": chance.choice([True, False])}
    if chance.random() < 0.5:
        body |= {"max_tokens": chance.randrange(60), "n": chance.choice([1, 2])}
    body["messages"] = [{"role": "user", "content": "é" * chance.randrange(120)}]
    return Request(
        json.dumps(body, ensure_ascii=chance.choice([True, False])).encode(),
        chance.choice([(), ((b"x-tier", b"batch"),), ((b"X-Tier", b"other"),)]),
        chance.uniform(1.7e9, 1.8e9),
        chance.choice([(), ("gold",)]),
        frozenset(chance.sample(FRONTENDS, chance.randrange(4))),
    )


Outcome = tuple[int | None, str | None, int | None, list[str], str | None]
"""Rule, tag, status of a denial, chain, the backend that is tried first."""


def by_a_proxy(snapshot: Snapshot, request: Request) -> Outcome:
    live: dict[str, Backend] = {}
    models = {model.id: model for model in snapshot.provider_models}
    for number in BACKENDS:
        made = live[f"backend-{number}"] = live_backend(number)
        made.entry = snapshot.backends[number - 1]
        made.model = models[made.entry.provider_model_id]
    view = build_view(snapshot, live)
    asking = exchange(body=request.body, headers=request.headers, view=view)
    asking.accepted_unix = request.now
    asking.frontend = view.models["f"]
    principal = PrincipalEntry("principal-1", "team-a", "service_account", request.roles)
    asking.caller = Caller(CALLER.key, principal, request.grants)
    balancer = Balancer(min)
    try:
        chain = route(asking, balancer)
    except Refused as refused:
        return asking.rule, asking.tag, refused.status, [], None
    first = Candidates(asking, balancer, Gates(), 2).next()
    names = [target.name for target in chain]
    return asking.rule, asking.tag, None, names, None if first is None else first.id


def by_the_engine_alone(snapshot: Snapshot, request: Request) -> Outcome:
    routes = resolve(snapshot, idle_backends(snapshot))
    asked = spoken_of("principal-1", request.body)
    sent: dict[str, Any] = json.loads(request.body)
    facts = Facts(
        principal="team-a",
        roles=request.roles,
        stream=sent["stream"],
        now_unix=request.now,
        headers={name.decode().lower(): value.decode() for name, value in request.headers},
        prompt_tokens=asked.prompt_tokens,
        max_tokens=asked.max_tokens,
    )
    chooser = Chooser(min, lambda: 0.0)
    found = said(
        routes,
        "f",
        facts,
        asked,
        chooser,
        request.grants.__contains__,
        lambda rule: mean_inflight(routes, rule, "openai", 0.0),
    )
    decision = found.decision
    first = next(
        (
            chooser.member(members, target.policy, asked, target.name).backend.id
            for target in found.chain
            if (members := target.by_dialect["openai"])
        ),
        None,
    )
    names = [target.name for target in found.chain]
    return decision.rule, decision.tag, decision.denied_status, names, first


def test_a_proxy_does_what_is_said_of_it() -> None:
    """500 configurations and requests."""
    seen: Counter[str] = Counter()
    for seed in range(500):
        chance = Random(seed)
        snapshot, asked = configuration(chance), request(chance)
        outcome = by_a_proxy(snapshot, asked)
        assert outcome == by_the_engine_alone(snapshot, asked), f"seed {seed}"
        rule, _, denied, chain, _ = outcome
        jumped = rule is not None and snapshot.frontend_models[0].rules[rule].action == "jump"
        seen.update(
            {
                "denied": denied is not None,
                "by a rule": rule is not None,
                "jumped": jumped,
                "long": len(chain) > 3,
            }
        )
    assert all(count >= 10 for count in seen.values()), seen
    assert len(seen) == 4
