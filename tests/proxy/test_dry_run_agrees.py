"""Whatever is configured and asked: what a proxy does, over sockets and with all backends up, is what the
control plane's dry run says of the very same rows.

Rows go both ways: into the snapshot that a real gateway serves from, in front of fake engines, and into
the dry run, with the body that a client sends. Engines fail where the whole order is to be seen."""

from __future__ import annotations

import datetime
import json
import math
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any, get_args
from uuid import UUID

import msgspec
import pytest

from fastllm_control.routing_preview import Preview
from fastllm_control.secrets import Keyring
from fastllm_control.services.dry_run import Endpoint, Question, read_body, work_out
from fastllm_control.snapshot import build
from fastllm_control.snapshot_rows import (
    FrontendModelRow,
    ModelRow,
    PoolMemberRow,
    PoolRow,
    PrincipalRow,
    Rows,
    RuleRow,
    TargetRow,
)
from fastllm_proxy.balancer import Balancer
from fastllm_shared.keys import digest_of
from fastllm_shared.snapshot import KeyEntry, Policy
from fastllm_shared.usage import UsageEvent
from tests.fakes.engine import Answer, FakeEngine
from tests.fakes.rows import backend, provider, rows
from tests.proxy.rig import KEY, Answered, Gateway, gateway

CONFIGURATIONS, REQUESTS = 25, 24
RING = Keyring.parse("ab" * 32)
MODELS, POOLS, FRONTENDS = ("m0", "m1", "m2", "m3"), ("p0", "p1"), ("f0", "f1", "f2", "f3")
PRINCIPALS = ("ann", "bob")
ENDPOINTS: tuple[Endpoint, ...] = (
    "/chat/completions",
    "/chat/completions",
    "/responses",
    "/embeddings",
    "/messages",
)
POLICIES: tuple[Policy, ...] = get_args(Policy)
MAX_ATTEMPTS, PER_TARGET = 4, 3


class Steady(Balancer):
    """Chance takes the first, nobody was ever measured, and each request is the first."""

    def __init__(self) -> None:
        super().__init__(draw=lambda equals: equals[0], clock=lambda: math.inf)

    forget = __init__


class Stage(msgspec.Struct):
    proxy: Gateway
    engines: list[FakeEngine]
    balancer: Steady
    asked: int = 0


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(FakeEngine.start()) for _ in range(6)]
        balancer = Steady()
        proxy = await stack.enter_async_context(gateway(tmp_path, *engines, balancer=balancer))
        yield Stage(proxy, engines, balancer)


def new(chance: Random) -> UUID:
    """An id that is the same in every run, for ids are hashed."""
    return UUID(int=chance.getrandbits(128), version=4)


def conditions(chance: Random) -> dict[str, Any]:
    """One or two, mostly: with many no rule would ever apply."""
    possible: dict[str, list[Any]] = {
        "principals": [["ann"], ["bob", "eve"]],
        "roles": [["gold"], ["silver", "gold"]],
        "min_prompt_tokens": [0, 30, 60],
        "max_prompt_tokens": [30, 60],
        "min_max_tokens": [1, 40],
        "max_max_tokens": [40, 70],
        "stream": [True, False],
        "headers": [{"X-Tier": "batch"}],
        "min_budget_used_percent": [0, 1],
        "max_inflight_per_backend": [0, 2],
        "days": [["mon", "tue", "wed"], ["thu", "fri", "sat", "sun"]],
        "after": ["00:00", "12:00"],
    }
    names = chance.sample(sorted(possible), chance.choice([0, 1, 1, 1, 2]))
    return {name: chance.choice(possible[name]) for name in names}


def targets_of(chance: Random, owner: UUID, least: int) -> list[TargetRow]:
    names = chance.sample([*MODELS, *POOLS, "gone"], chance.randrange(least, 5))
    return [TargetRow(owner, name, chance.choice([1, 1, 2, 5])) for name in names]


def rule_of(chance: Random, model: FrontendModelRow, position: int) -> RuleRow:
    drawn = chance.random()
    action: Any = "deny" if drawn < 0.2 else "jump" if drawn < 0.45 else "route"
    later = [name for name in FRONTENDS if name > model.name]
    return RuleRow(
        id=new(chance),
        frontend_model_id=model.id,
        position=position,
        conditions=conditions(chance),
        action=action,
        policy=chance.choice([None, *POLICIES]) if action == "route" else None,
        tag=chance.choice([None, f"{model.name}-{position}"]),
        deny_status=chance.choice([403, 418, 429]) if action == "deny" else None,
        deny_message=chance.choice([None, "not now"]) if action == "deny" else None,
        jump=chance.choice([*later, "gone"]) if action == "jump" else None,
    )


def model_of(chance: Random, name: str) -> ModelRow:
    context, prices = chance.choice([None, None, 40, 90]), chance.choices([None, 0, 1, 5], k=2)
    return ModelRow(new(chance), name, context, prices[0], prices[1], None)


def configuration(chance: Random, number: int, urls: list[str]) -> Rows:
    hosts = [
        provider(
            id=new(chance),
            name=f"gpu-{at}",
            api_base=url,
            protocol=chance.choice(["both", "both", "openai"]),
        )
        for at, url in enumerate(urls)
    ]
    prices = [None, 0, 1, 5]
    models = [
        ModelRow(
            new(chance),
            name,
            chance.choice([None, None, 40, 90]),
            chance.choice(prices),
            chance.choice(prices),
            None,
        )
        for name in MODELS
    ]
    backends = [
        backend(host, model, id=new(chance), state=chance.choice([*["active"] * 8, "draining", "disabled"]))
        for model in models
        for host in chance.sample(hosts, chance.randrange(4))
    ]
    pools = [PoolRow(new(chance), name, chance.choice(POLICIES)) for name in POOLS]
    members = [
        PoolMemberRow(pool.id, None, one.id, chance.choice([1, 2, 4]))
        for pool in pools
        for one in chance.sample(backends, min(len(backends), chance.randrange(4)))
    ] + [PoolMemberRow(pool.id, chance.choice(MODELS), None, 1) for pool in pools if chance.random() < 0.3]
    frontends = [
        FrontendModelRow(new(chance), name, chance.choice([None, *POLICIES]), False, 0.0)
        for name in FRONTENDS
    ]
    rules = [rule_of(chance, model, at) for model in frontends for at in range(chance.randrange(4))]
    callers = [PrincipalRow(new(chance), name, "service_account", None, None) for name in PRINCIPALS]
    made = rows(
        keys=[
            KeyEntry(digest_of(KEY + row.name), str(new(chance)), str(row.id), "sk-test") for row in callers
        ],
        principals=callers,
        roles={row.id: chance.sample(["gold", "silver"], chance.randrange(3)) for row in callers},
        resources={
            row.id: chance.choice([["model/*"], [f"model/{name}" for name in chance.sample(FRONTENDS, 3)]])
            for row in callers
        },
        providers=hosts,
        models=models,
        backends=backends,
        pools=pools,
        pool_members=members,
        frontend_models=frontends,
        rules=rules,
        rule_targets=[
            target for rule in rules if rule.action == "route" for target in targets_of(chance, rule.id, 0)
        ],
        default_targets=[target for model in frontends for target in targets_of(chance, model.id, 1)],
        fallback_model=chance.choice([None, *FRONTENDS, "gone"]),
    )
    return msgspec.structs.replace(made, version=made.version + number)


def body_of(chance: Random, model: str, endpoint: Endpoint) -> bytes:
    content = "word " * chance.randrange(60)
    body: dict[str, Any] = {"model": model}
    if endpoint in ("/embeddings", "/responses"):
        body["input"] = content
    else:
        body["messages"] = [{"role": "user", "content": content}]
    if endpoint != "/embeddings" and chance.random() < 0.6:
        name = "max_output_tokens" if endpoint == "/responses" else "max_tokens"
        body[name] = chance.randrange(1, 90)
    if chance.random() < 0.4:
        body["stream"] = chance.random() < 0.5 and endpoint == "/chat/completions"
    return json.dumps(body, separators=chance.choice([(",", ":"), (", ", ": ")])).encode()


async def done(stage: Stage, asked: Asked) -> tuple[Answered, UsageEvent, list[str]]:
    """What the client gets, the usage event, and which engines were tried in which order."""
    stage.balancer.forget()
    for engine in stage.engines:
        engine.requests.clear()
        engine.script(asked.endpoint, *([Answer(status=500)] if asked.fails else []))
    key = {"authorization": f"Bearer {KEY}{asked.who.name}"}
    answered = await stage.proxy.post(f"/v1{asked.endpoint}", asked.body, {**key, **asked.headers})
    stage.asked += 1
    event = await stage.proxy.events.get(stage.asked)
    numbered = enumerate(stage.engines)
    tried = sorted((one.received_at, f"gpu-{at}") for at, engine in numbered for one in engine.requests)
    return answered, event, [name for _, name in tried]


def order_of(told: Preview) -> list[str]:
    """Providers in the order of being tried if all fail: at most three of a target, four in all."""
    tried: dict[str, str] = {}
    for link in told.chain:
        left = [one for one in link.backends if one.skipped is None and one.backend_id not in tried]
        for one in left[:PER_TARGET]:
            tried[one.backend_id] = one.provider
    return list(tried.values())[:MAX_ATTEMPTS]


def is_settled(told: Preview) -> bool:
    """Turns go on where a backend that stands in two targets is passed over in the second: then the order
    among the rest is that of the turns, which the dry run does not foretell."""
    seen: set[str] = set()
    for link in told.chain:
        usable = {one.backend_id for one in link.backends if one.skipped is None}
        if link.policy == "round-robin" and usable & seen:
            return False
        seen |= usable
    return True


def agrees(told: Preview, answered: Answered, event: UsageEvent, tried: list[str], *, fails: bool) -> None:
    if not told.granted:
        assert (answered.status, event.refusal, tried) == (403, "authorisation", [])
        return
    assert (event.rule, event.tag) == (told.rule, told.tag)
    if told.denied is not None:
        error = answered.json()["error"]
        assert (answered.status, error["message"]) == (told.denied.status, told.denied.message)
        assert (event.refusal, tried) == ("denied", [])
        return
    order = order_of(told)
    if not order:
        assert (answered.status, event.refusal, tried) == (503, "no_backend", [])
    elif fails:
        if is_settled(told):
            assert tried == order
        else:
            assert (tried[0], len(tried)) == (order[0], len(order))
    else:
        assert (answered.status, tried) == (200, order[:1])


class Asked(msgspec.Struct, frozen=True):
    """A request that a client makes; `fails`: the engines answer it with an error."""

    who: PrincipalRow
    endpoint: Endpoint
    body: bytes
    headers: dict[str, str]
    fails: bool

    def told(self, configured: Rows, at: datetime.datetime) -> Preview:
        """What the dry run says of it."""
        question = Question(endpoint=self.endpoint, headers=self.headers, at=at, body=msgspec.Raw(self.body))
        read = read_body(question)
        assert read.model is not None
        return work_out(configured, read.model, self.who.id, question, read, at, RING.open)


def request(chance: Random, configured: Rows) -> Asked:
    endpoint = chance.choice(ENDPOINTS)
    return Asked(
        chance.choice(configured.principals),
        endpoint,
        body_of(chance, chance.choice(FRONTENDS), endpoint),
        chance.choice([{}, {"X-Tier": "batch"}, {"x-tier": "other"}]),
        chance.random() < 0.6,
    )


@pytest.mark.parametrize("number", range(CONFIGURATIONS))
async def test_a_proxy_does_what_the_dry_run_says(stage: Stage, number: int) -> None:
    """With all configurations 600 requests."""
    chance = Random(number)
    configured = configuration(chance, number, [engine.url for engine in stage.engines])
    made = build(configured, RING.open)
    assert made.dropped == ()
    stage.proxy.store.accept(made.snapshot)
    for at in range(REQUESTS):
        asked = request(chance, configured)
        answered, event, tried = await done(stage, asked)
        told = asked.told(configured, datetime.datetime.fromtimestamp(event.at, datetime.UTC))
        try:
            agrees(told, answered, event, tried, fails=asked.fails)
        except AssertionError as error:
            raise AssertionError(f"request {at}: {error}\n{told}") from error
    assert stage.asked == REQUESTS


def test_all_that_can_happen_is_among_it() -> None:
    seen: Counter[str] = Counter()
    noon = datetime.datetime(2026, 7, 1, 12, tzinfo=datetime.UTC)
    for number in range(CONFIGURATIONS):
        chance = Random(number)
        configured = configuration(chance, number, [f"http://127.0.0.1:{port}/v1" for port in range(9, 15)])
        for _ in range(REQUESTS):
            seen.update(kinds(request(chance, configured).told(configured, noon)))
    print(dict(seen))  # noqa: T201 - the counts are wanted where this is run with -s
    assert seen["requests"] == 600
    for kind in ("refused", "denied", "by a rule", "jumped", "fallback", "several"):
        assert seen[kind] > 20, seen


def kinds(told: Preview) -> list[str]:
    if not told.granted:
        return ["requests", "refused"]
    found = {
        "requests": True,
        "denied": told.denied is not None,
        "by a rule": told.rule is not None,
        "jumped": bool(told.jumps),
        "fallback": any(link.fallback for link in told.chain),
        "several": len(order_of(told)) > 1,
    }
    return [kind for kind, is_so in found.items() if is_so]
