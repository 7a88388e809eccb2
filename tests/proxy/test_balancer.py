"""Conversations and their backends, as one replica chooses them."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

from fastllm_proxy.backends import Backend
from fastllm_proxy.balancer import Balancer
from fastllm_proxy.view import Member
from fastllm_shared.snapshot import DEFAULT_POLICY, Policy
from tests.proxy.parts import CALLER, exchange, live_backend

SYSTEM = {"role": "system", "content": "You are an agent. " * 300}


def members(count: int) -> list[Member]:
    return [Member(live_backend(n), 1) for n in range(count)]


def choose(
    among: list[Member], body: bytes | None = None, policy: Policy = DEFAULT_POLICY, seed: int = 0
) -> Backend:
    balancer = Balancer(random.Random(seed).choice)
    return balancer.member(among, policy, exchange(body=body), "qwen").backend


def turn(*contents: str, **members: Any) -> bytes:
    """A conversation of which the user speaks first."""
    roles = ("user", "assistant")
    messages = [SYSTEM, *({"role": roles[at % 2], "content": text} for at, text in enumerate(contents))]
    return json.dumps({"model": "assistant", **members, "messages": messages}, separators=(",", ":")).encode()


def test_a_conversation_returns_to_its_backend_as_it_grows() -> None:
    among = members(4)
    for number in range(50):
        opening = f"question {number}"
        first = choose(among, turn(opening))
        assert first is choose(among, turn(opening, "an answer", "and then?" * 200), seed=9)


def test_conversations_spread_evenly_although_their_first_kilobytes_are_alike() -> None:
    among = members(4)
    counts = Counter(choose(among, turn(f"q{n}")).id for n in range(2000))
    assert len(counts) == 4
    assert all(400 < count < 600 for count in counts.values())


def test_another_principal_is_another_conversation() -> None:
    one, other = exchange(body=turn("q")), exchange(body=turn("q"))
    assert one.conversation() == other.conversation() == one.conversation()
    fresh = exchange(body=turn("q"))
    fresh.caller = type(CALLER)(CALLER.key, type(CALLER.principal)("principal-2", "b", "user"), frozenset())
    assert fresh.conversation() != one.conversation()


def test_chance_and_time_are_the_processes_own_unless_given() -> None:
    among = members(2)
    assert {Balancer().member(among, "least-loaded", exchange(), "q").backend.id for _ in range(60)} == {
        "backend-0",
        "backend-1",
    }
    among[0].backend.latency, among[0].backend.latency_at = 0.1, 100.0
    among[1].backend.latency, among[1].backend.latency_at = 9.0, 100.0
    known = Balancer(clock=lambda: 101.0)
    assert {known.member(among, "lowest-latency", exchange(), "q").backend.id for _ in range(30)} == {
        "backend-0"
    }
