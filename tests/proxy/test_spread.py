"""The bars of balancing: splits as weighted, replicas that agree, caches that are found again. What was
measured is a property of each test: `pytest --junit-xml FILE -o junit_family=xunit1` shows it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fastllm_shared.snapshot import Policy
from tests.fakes.engine import FakeEngine
from tests.proxy.parts import live_backend, target
from tests.proxy.rig import Gateway, gateway
from tests.proxy.spread import Replica, homes_of, serve, split, turn

Record = Callable[[str, Any], None]


@pytest.mark.parametrize(
    ("weights", "conversations"), [((7, 2, 1), 10_000), ((1, 1), 4_000), ((97, 3), 4_000)]
)
def test_a_split_is_as_weighted_and_conversations_stay_on_their_side(
    weights: tuple[int, ...], conversations: int, record_property: Record
) -> None:
    targets = [target(f"t{at}", live_backend(at), weight=weight) for at, weight in enumerate(weights)]
    shares, strayed = split(targets, conversations, turns=2)
    record_property("shares", shares)
    assert strayed == 0
    for one in targets:
        assert abs(shares[one.name] - one.weight / sum(weights)) <= 0.02


@pytest.mark.parametrize("at_once", [1, 16, 48])
def test_replicas_agree_and_later_turns_find_the_cache_of_the_first(
    at_once: int, record_property: Record
) -> None:
    """While load is even: 700 conversations of four turns, mixed, over two replicas and four backends."""
    found = serve([Replica(4), Replica(4, seed=5)], conversations=700, turns=4, at_once=at_once)
    record_property("found", msgspec.to_builtins(found))
    assert found.agreed >= 0.95
    assert found.returned >= 0.85
    assert all(0.2 < share < 0.3 for share in found.shares.values())


def test_a_hot_backend_yields_and_gets_its_conversations_back() -> None:
    replica = Replica(4)
    conversations = range(400)
    before = homes_of(replica, conversations)
    hot = replica.backends[1]
    hot.inflight = 9  # the others have nothing to do
    during = homes_of(replica, conversations)
    assert hot.id in before
    assert hot.id not in during
    moved = Counter(now for was, now in zip(before, during, strict=True) if was == hot.id)
    assert len(moved) == 3, "its load goes to all the others"
    assert all(now == was for was, now in zip(before, during, strict=True) if was != hot.id)
    hot.inflight = 8
    assert homes_of(replica, conversations) == before


def test_a_flood_of_one_conversation_does_not_stay_on_one_backend() -> None:
    replica = Replica(4)
    counts: Counter[str] = Counter()
    for _ in range(200):
        chosen = replica.choose(turn(1, 0))
        chosen.inflight += 1
        counts[chosen.id] += 1
    assert len(counts) == 4
    assert max(counts.values()) <= min(counts.values()) * 1.5 + 9


def test_a_fifth_backend_moves_no_more_than_its_share(record_property: Record) -> None:
    conversations = range(3000)
    before, after = homes_of(Replica(4), conversations), homes_of(Replica(5), conversations)
    moved = [(was, now) for was, now in zip(before, after, strict=True) if was != now]
    record_property("moved", len(moved) / len(before))
    assert 0.15 < len(moved) / len(before) <= 0.25
    assert {now for _, now in moved} == {"backend-5"}, "nobody moves between the old ones"


@pytest.mark.parametrize("policy", ["least-loaded", "round-robin", "lowest-latency"])
def test_what_looks_at_no_conversation_spreads_evenly(policy: Policy, record_property: Record) -> None:
    found = serve([Replica(4, policy), Replica(4, policy, seed=5)], conversations=500, turns=2, at_once=32)
    record_property("shares", found.shares)
    assert all(0.2 < share < 0.3 for share in found.shares.values())


async def test_two_proxies_send_a_conversation_to_the_same_engine(tmp_path: Path) -> None:
    """On real sockets: each turn at another proxy than the one before, 16 conversations at a time."""
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(FakeEngine.start()) for _ in range(4)]
        proxies = []
        for name in ("one", "other"):
            folder = tmp_path / name
            folder.mkdir()
            proxies.append(await stack.enter_async_context(gateway(folder, *engines)))
        at_once = asyncio.Semaphore(16)

        async def talk(conversation: int) -> None:
            async with at_once:
                for number in range(3):
                    answer = await proxies[number % 2].post(body=turn(conversation, number))
                    assert answer.status == 200

        await asyncio.gather(*(talk(conversation) for conversation in range(60)))
        assert stayed_together(engines) == 60
        assert all(proxy.inflight == 0 for proxy in proxies)
        await other_engines(proxies[0], engines)


def stayed_together(engines: list[FakeEngine]) -> int:
    """How many conversations had all of their turns at one engine."""
    seen: dict[str, set[int]] = {}
    for at, engine in enumerate(engines):
        for request in engine.requests:
            opening = request.json()["messages"][1]["content"].split(":")[0]
            seen.setdefault(opening, set()).add(at)
    return sum(len(at) == 1 for at in seen.values())


async def other_engines(proxy: Gateway, engines: list[FakeEngine]) -> None:
    """A conversation whose engine is hot goes to another one."""
    busiest = max(range(4), key=lambda at: engines[at].hits("/chat/completions"))
    before = engines[busiest].hits("/chat/completions")
    proxy.backend(busiest + 1).inflight += 9
    for conversation in range(8):
        assert (await proxy.post(body=turn(conversation, 0))).status == 200
    proxy.backend(busiest + 1).inflight -= 9
    assert engines[busiest].hits("/chat/completions") == before
