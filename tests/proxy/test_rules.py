"""Rules, jumps and the fallback on real sockets: what a client gets, and what is written of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from fastllm_proxy.exchange import Exchange, TokenUsage
from fastllm_proxy.limits import Limits, Reservation
from fastllm_shared.snapshot import (
    Conditions,
    FrontendModelEntry,
    Policy,
    PoolEntry,
    PoolMember,
    PrincipalEntry,
    ProviderModelEntry,
    RuleEntry,
    TargetEntry,
)
from tests.fakes.engine import Answer, FakeEngine
from tests.proxy.rig import MODEL, chat, gateway

CHAT = "/chat/completions"
DENY = RuleEntry(
    0,
    Conditions(headers={"x-tier": "batch"}),
    "deny",
    deny_status=429,
    deny_message="batch jobs run at night",
    tag="batch",
)


def models(*rules: RuleEntry, net: tuple[RuleEntry, ...] = (), **changes: Any) -> dict[str, Any]:
    """`assistant` with these rules over the first engine, `net` over the second; the caller may use
    both."""
    return {
        "principals": (PrincipalEntry("principal-1", "team-a", "service_account", models=(MODEL, "net")),),
        "provider_models": tuple(
            ProviderModelEntry(f"model-{n}", f"m{n}", backends=(f"backend-{n}",)) for n in (1, 2)
        ),
        "frontend_models": (
            FrontendModelEntry("f1", MODEL, 0.0, rules=rules, targets=(TargetEntry("m1"),)),
            FrontendModelEntry("f2", "net", 0.0, rules=net, targets=(TargetEntry("m2"),)),
        ),
        **changes,
    }


class Counted(Reservation):
    """Counts what becomes of reservations."""

    __slots__ = ("ends",)

    def __init__(self) -> None:
        self.ends: list[str] = []

    def settle(self, usage: TokenUsage | None) -> None:
        self.ends.append("settled")

    def release(self) -> None:
        self.ends.append("released")


class Counting(Limits):
    """Gives every request the same reservation."""

    __slots__ = ("reservation",)

    def __init__(self) -> None:
        super().__init__()
        self.reservation = Counted()

    def admit(self, exchange: Exchange) -> None:
        exchange.reservation = self.reservation


async def test_a_denied_request_is_answered_and_written_down_and_consumes_nothing(tmp_path: Path) -> None:
    limits = Counting()
    async with FakeEngine.start() as engine, gateway(tmp_path, engine, limits=limits) as proxy:
        proxy.configure(**models(DENY))
        answer = await proxy.post(headers={"X-Tier": "batch"})
        assert (answer.status, answer.code) == (429, "denied_by_rule")
        assert answer.json()["error"]["message"] == "batch jobs run at night"
        event = await proxy.events.get()
        assert (event.status, event.refusal, event.rule, event.tag) == (429, "denied", 0, "batch")
        assert (event.backend_id, event.attempts, event.usage_reported) == (None, 0, False)
        assert engine.requests == []
        assert proxy.metrics.rejections == {"denied_by_rule": 1}
        assert limits.reservation.ends == ["released"]
        assert (await proxy.post()).status == 200
        assert limits.reservation.ends == ["released", "settled"]
        event = await proxy.events.get(2)
        assert (event.rule, event.tag, event.refusal) == (None, None, None)


async def test_a_denied_client_of_the_other_dialect_is_told_in_its_own(tmp_path: Path) -> None:
    async with FakeEngine.start() as engine, gateway(tmp_path, engine) as proxy:
        proxy.configure(**models(msgspec.structs.replace(DENY, deny_status=403)))
        answer = await proxy.post("/v1/messages", chat(max_tokens=5), {"x-tier": "batch"})
        assert answer.status == 403
        assert answer.json()["type"] == "error"
        assert answer.json()["error"] == {"type": "permission_error", "message": "batch jobs run at night"}


@pytest.mark.parametrize(
    ("rule", "tag"),
    [
        (RuleEntry(3, targets=(TargetEntry("m2"),), tag="own"), "own"),
        (RuleEntry(3, action="jump", jump="net", tag="own"), "own"),
        (RuleEntry(3, action="jump", jump="net"), None),
    ],
)
async def test_what_decided_is_on_the_usage_row(tmp_path: Path, rule: RuleEntry, tag: str | None) -> None:
    async with FakeEngine.start() as one, FakeEngine.start() as two, gateway(tmp_path, one, two) as proxy:
        proxy.configure(**models(rule))
        assert (await proxy.post()).status == 200
        assert (one.hits(CHAT), two.hits(CHAT)) == (0, 1)
        event = await proxy.events.get()
        assert (event.model, event.rule, event.tag) == (MODEL, 3, tag)


@pytest.mark.parametrize(
    ("granted", "net", "status"),
    [
        (True, (), 200),
        (False, (), 500),
        (True, (RuleEntry(0, action="deny"),), 500),
        (True, (RuleEntry(0, Conditions(stream=True), "deny"),), 200),
    ],
)
async def test_the_fallback_serves_when_nobody_else_does(
    tmp_path: Path, granted: bool, net: tuple[RuleEntry, ...], status: int
) -> None:
    async with FakeEngine.start() as one, FakeEngine.start() as two, gateway(tmp_path, one, two) as proxy:
        one.script(CHAT, Answer(status=500))
        changes: dict[str, Any] = {}
        if not granted:
            only = PrincipalEntry("principal-1", "team-a", "service_account", models=(MODEL,))
            changes["principals"] = (only,)
        proxy.configure(**models(net=net, fallback_model="net", **changes))
        assert (await proxy.post()).status == status
        assert two.hits(CHAT) == (status == 200)
        event = await proxy.events.get()
        assert (event.model, event.rule, event.status) == (MODEL, None, status)


async def test_state_is_refused_over_the_fallback_too(tmp_path: Path) -> None:
    async with FakeEngine.start() as one, FakeEngine.start() as two, gateway(tmp_path, one, two) as proxy:
        body = {"model": MODEL, "input": "x", "previous_response_id": "r"}
        proxy.configure(**models())
        assert (await proxy.post("/v1/responses", body)).status == 200
        proxy.configure(**models(fallback_model="net"))
        assert (await proxy.post("/v1/responses", body)).code == "unsupported_parameter"
        only = RuleEntry(0, Conditions(), targets=(TargetEntry("m2"),))
        proxy.configure(**models(only, fallback_model="net"))
        assert (await proxy.post("/v1/responses", body)).status == 200


async def test_nothing_left_is_nobody_elses_backend(tmp_path: Path) -> None:
    async with FakeEngine.start() as one, FakeEngine.start() as two, gateway(tmp_path, one, two) as proxy:
        proxy.configure(**models(RuleEntry(0, targets=(TargetEntry("gone"),), tag="t")))
        answer = await proxy.post()
        assert (answer.status, answer.code) == (503, "no_backend")
        event = await proxy.events.get()
        assert (event.refusal, event.rule, event.tag) == ("no_backend", 0, "t")
        assert one.requests == two.requests == []


async def test_turns_go_on_over_a_new_configuration(tmp_path: Path) -> None:
    async with FakeEngine.start() as one, FakeEngine.start() as two, gateway(tmp_path, one, two) as proxy:
        both = (TargetEntry("m1"), TargetEntry("m2"))
        for policy_version in range(4):
            changed = FrontendModelEntry("f1", MODEL, float(policy_version), "round-robin", targets=both)
            proxy.configure(**models(frontend_models=(changed,)))
            assert (await proxy.post()).status == 200
        assert (one.hits(CHAT), two.hits(CHAT)) == (2, 2)


BOTH = ProviderModelEntry("model-1", "pool", backends=("backend-1", "backend-2"))


def pool(policy: Policy, first: int, second: int) -> dict[str, Any]:
    members = (PoolMember("backend-1", first), PoolMember("backend-2", second))
    return {"pools": (PoolEntry("p", "pool", policy, members),)}


@pytest.mark.parametrize(
    ("changes", "hits"),
    [
        (pool("round-robin", 2, 1), [4, 2]),
        (pool("weighted", 0, 1), [0, 6]),
        ({"provider_models": (BOTH,), "policy": "round-robin"}, [3, 3]),
        ({"provider_models": (BOTH,), "policy": "weighted"}, None),
    ],
    ids=("a pool's", "a pool's weight of nought", "the list's", "the deployment's"),
)
async def test_whose_policy_counts_among_backends(
    tmp_path: Path, changes: dict[str, Any], hits: list[int] | None
) -> None:
    """Six requests of one conversation."""
    policy: Policy | None = changes.get("policy")
    entries = {name: value for name, value in changes.items() if name != "policy"}
    async with FakeEngine.start() as one, FakeEngine.start() as two, gateway(tmp_path, one, two) as proxy:
        over = FrontendModelEntry("f1", MODEL, 0.0, policy, targets=(TargetEntry("pool"),))
        proxy.configure(**{**models(), **entries, "frontend_models": (over,)})
        for _ in range(6):
            assert (await proxy.post()).status == 200
        found = [one.hits(CHAT), two.hits(CHAT)]
        assert found == hits if hits is not None else sorted(found) == [0, 6]
