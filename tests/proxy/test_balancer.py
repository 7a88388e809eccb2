"""Which backend is chosen: agreement between replicas, bounded load, the conversation as the key."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest

from fastllm_proxy.backends import Backend
from fastllm_proxy.balancer import AFFINITY_BYTES, Balancer, affinity_key, conversation_start
from fastllm_proxy.peek import peek
from fastllm_proxy.view import Member
from fastllm_shared.snapshot import Policy
from tests.proxy.parts import CALLER, exchange, live_backend

SYSTEM = {"role": "system", "content": "You are an agent. " * 300}


def members(count: int, weights: tuple[int, ...] = ()) -> list[Member]:
    return [Member(live_backend(n), weights[n] if weights else 1) for n in range(count)]


def choose(among: list[Member], policy: Policy | None, body: bytes | None = None, seed: int = 0) -> Backend:
    return Balancer(random.Random(seed).choice).choose(among, policy, exchange(body=body))


def turn(*contents: str, system: dict[str, Any] = SYSTEM, **members: Any) -> bytes:
    """A conversation of which the user speaks first."""
    roles = ("user", "assistant")
    messages = [system, *({"role": roles[at % 2], "content": text} for at, text in enumerate(contents))]
    return json.dumps({"model": "assistant", **members, "messages": messages}, separators=(",", ":")).encode()


def start(body: bytes) -> bytes:
    return conversation_start(peek(body), body)


def test_one_needs_no_choosing() -> None:
    among = members(1)
    assert choose(among, None) is among[0].backend


def test_a_conversation_returns_to_its_backend_as_it_grows() -> None:
    among = members(4)
    for number in range(50):
        opening = f"question {number}"
        first = choose(among, "cache-affinity", turn(opening))
        later = choose(among, "cache-affinity", turn(opening, "an answer", "and then?" * 200), seed=9)
        assert first is later


def test_conversations_spread_evenly_although_their_first_kilobytes_are_alike() -> None:
    among = members(4)
    counts = Counter(choose(among, None, turn(f"q{n}")).id for n in range(2000))
    assert len(counts) == 4
    assert all(400 < count < 600 for count in counts.values())


def test_another_principal_is_another_key() -> None:
    one, other = exchange(body=turn("q")), exchange(body=turn("q"))
    assert affinity_key(one) == affinity_key(other)
    fresh = exchange(body=turn("q"))
    fresh.caller = type(CALLER)(CALLER.key, type(CALLER.principal)("principal-2", "b", "user"), frozenset())
    assert affinity_key(fresh) != affinity_key(one)


def test_when_one_goes_only_its_keys_move() -> None:
    among = members(5)
    bodies = [turn(f"q{n}") for n in range(300)]
    before = [choose(among, None, body) for body in bodies]
    gone = among[2].backend
    after = [choose([m for m in among if m.backend is not gone], None, body) for body in bodies]
    assert all(b is a for b, a in zip(before, after, strict=True) if b is not gone)
    assert len({a.id for b, a in zip(before, after, strict=True) if b is gone}) > 1


def test_a_hot_backend_is_passed_over_and_taken_again_when_it_has_cooled() -> None:
    among = members(3)
    home = choose(among, None, turn("q"))
    home.inflight = 8
    assert choose(among, None, turn("q")) is home
    home.inflight = 9
    second = choose(among, None, turn("q"))
    assert second is not home
    # Hotter by more than 8, but by less than half: both bounds must be passed.
    for member in among:
        member.backend.inflight = 30
    home.inflight = 44
    assert choose(among, None, turn("q")) is home
    home.inflight = 46
    assert choose(among, None, turn("q")) is second


def test_weights_share_out_keys_and_bear_load() -> None:
    among = members(2, weights=(3, 1))
    for policy in ("cache-affinity", "weighted"):
        counts = Counter(choose(among, policy, turn(f"q{n}")).id for n in range(2000))
        assert 1400 < counts["backend-0"] < 1600
    among[0].backend.inflight = 3
    among[1].backend.inflight = 2
    assert choose(among, "least-loaded") is among[0].backend


def test_weighted_does_not_look_at_load() -> None:
    among = members(2)
    home = choose(among, "weighted", turn("q"))
    home.inflight = 1000
    assert choose(among, "weighted", turn("q")) is home


def test_least_loaded_takes_the_least_and_does_not_herd_on_ties() -> None:
    among = members(4)
    among[0].backend.inflight = among[1].backend.inflight = 1
    chosen = {choose(among, "least-loaded", seed=seed).id for seed in range(50)}
    assert chosen == {"backend-2", "backend-3"}


def test_of_two_drawn_the_faster_one_is_taken() -> None:
    among = members(2)
    among[0].backend.latency, among[1].backend.latency = 0.5, 0.1
    counts = Counter(choose(among, "least-loaded", seed=seed).id for seed in range(400))
    assert counts["backend-1"] > counts["backend-0"] > 0


@pytest.mark.parametrize("policy", ["lowest-latency", "round-robin", "cheapest"])
def test_policies_that_are_not_built_yet_choose_somebody(policy: Policy) -> None:
    among = members(3)
    assert choose(among, policy) in [m.backend for m in among]


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
@pytest.mark.parametrize("role_last", [False, True])
def test_the_beginning_of_a_conversation_is_the_same_in_every_turn(
    separators: tuple[str, str], role_last: bool
) -> None:
    def body(*contents: str) -> bytes:
        messages = []
        for at, text in enumerate(contents):
            role = ("system", "user", "assistant", "user")[at]
            message = {"role": role, "content": text}
            messages.append(dict(reversed(message.items())) if role_last else message)
        return json.dumps({"messages": messages, "model": "m"}, separators=separators).encode()

    for opening in ("short", "long " * 1000, 'with "role" and "user" {braces}'):
        first = start(body("system", opening))
        assert first == start(body("other system", opening, "answer"))
        assert first == start(body("system", opening, "answer", "again" * 500))
        assert first != start(body("system", opening[1:]))
        assert len(first) <= AFFINITY_BYTES


def test_bodies_without_a_user_message() -> None:
    assert start(b'{"model":"m","input":"abc","x":1}') == b'"abc"'
    assert start(b'{"x":1,"model":"m","prompt":"abc"}') == b',"prompt":"abc"}'
    assert start(b'{"model":"m","messages":[]}') == b',"messages":[]}'
    assert start(b'{"model":"m","messages":7}') == b',"messages":7}'
    assert len(start(b'{"model":"m","input":"' + b"x" * 5000 + b'"}')) == AFFINITY_BYTES
