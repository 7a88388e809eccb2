"""Conversations over backends: what share goes where, and what comes back. Everything but the sockets is
real."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from fastllm_proxy.backends import Backend, InFlight
from fastllm_proxy.balancer import Balancer
from fastllm_proxy.candidates import Candidates
from fastllm_proxy.exchange import Exchange
from fastllm_proxy.gate import Gates
from fastllm_proxy.routing import route
from fastllm_proxy.view import Target
from fastllm_shared.snapshot import Policy
from tests.proxy.parts import exchange, live_backend, target

SYSTEM = {"role": "system", "content": "You are an agent with many tools. " * 100}
"""Alike in all of them, as agents' are: 3 KiB."""


def turn(conversation: int, number: int) -> bytes:
    """The body of a turn: the whole conversation up to it."""
    messages = [SYSTEM]
    for at in range(number + 1):
        messages.append({"role": "user", "content": f"{conversation}: what about {at}?"})
        messages.append({"role": "assistant", "content": f"thoughts on {at}"})
    return json.dumps({"model": "assistant", "messages": messages[:-1]}, separators=(",", ":")).encode()


class Replica:
    """One proxy: a balancer of its own, and the same backends as every other one as it sees them."""

    def __init__(self, backends: int, policy: Policy = "cache-affinity", seed: int = 0) -> None:
        self.balancer = Balancer(random.Random(seed).choice)
        self.backends = [live_backend(number) for number in range(1, backends + 1)]
        self.targets = (target("qwen", *self.backends, policy=policy),)

    def choose(self, body: bytes) -> Backend:
        """Where a request goes."""
        made = exchange(*self.targets, body=body)
        made.chain = None
        return self.first(made)

    def first(self, made: Exchange) -> Backend:
        route(made, self.balancer)
        found = Candidates(made, self.balancer, Gates(), 2).next()
        assert found is not None
        return found


def split(targets: Sequence[Target], conversations: int, turns: int) -> tuple[dict[str, float], int]:
    """The share of conversations that begins on each target, and how many turns were not on the side of
    their conversation's first."""
    balancer = Balancer()
    counts: Counter[str] = Counter()
    strayed = 0
    for conversation in range(conversations):
        sides = [
            route(exchange(*targets, body=turn(conversation, number)), balancer)[0].name
            for number in range(turns)
        ]
        counts[sides[0]] += 1
        strayed += sum(side != sides[0] for side in sides)
    return {one.name: counts[one.name] / conversations for one in targets}, strayed


class Traffic(msgspec.Struct):
    """What came of some traffic, as shares of 1. `agreed`: how often the other replica would have chosen the
    same backend at that moment; `returned`: later turns that went to the backend of the first one."""

    agreed: float
    returned: float
    shares: dict[str, float]


def serve(
    replicas: Sequence[Replica], *, conversations: int, turns: int, at_once: int, seed: int = 1
) -> Traffic:
    """Turns of many conversations, mixed, each at a replica drawn at random; `at_once` are under way."""
    chance = random.Random(seed)
    order = [conversation for conversation in range(conversations) for _ in range(turns)]
    chance.shuffle(order)
    taken: Counter[int] = Counter()
    homes: dict[int, str] = {}
    under_way: list[InFlight] = []
    agreed = returned = later = 0
    shares: Counter[str] = Counter()
    for conversation in order:
        body = turn(conversation, taken[conversation])
        taken[conversation] += 1
        choices = [replica.choose(body) for replica in replicas]
        chosen = chance.choice(choices)
        agreed += len({backend.id for backend in choices}) == 1
        if conversation in homes:
            later += 1
            returned += homes[conversation] == chosen.id
        homes.setdefault(conversation, chosen.id)
        shares[chosen.id] += 1
        under_way.append(InFlight(chosen))
        if len(under_way) > at_once:
            under_way.pop(chance.randrange(len(under_way))).release()
    for guard in under_way:
        guard.release()
    total = len(order)
    return Traffic(agreed / total, returned / later, {id_: n / total for id_, n in shares.items()})


def homes_of(replica: Replica, conversations: Iterable[int]) -> list[str]:
    """Where each conversation is at home while nothing is going on."""
    return [replica.choose(turn(conversation, 0)).id for conversation in conversations]
