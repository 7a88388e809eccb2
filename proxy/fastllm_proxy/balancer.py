"""Which backend of a target is tried next.

`cache-affinity`: rendezvous hashing on who asks and how the conversation begins, so that its later turns find
their prefix in the same engine's cache, on every replica, with no shared state; the load on the chosen one is
bounded. `least-loaded`: fewest in flight; of two drawn at random among equals, so that replicas do not move
as a herd. `weighted`: the cache-affinity key, without regard to load.

Not built yet, and served by the named one meanwhile (`_STAND_INS`): `lowest-latency`, `round-robin`,
`cheapest`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from fastllm_proxy.backends import Backend
from fastllm_shared.routing import mix, score, stable_hash
from fastllm_shared.snapshot import DEFAULT_POLICY, Policy

if TYPE_CHECKING:
    from fastllm_proxy.exchange import Exchange
    from fastllm_proxy.peek import Peek
    from fastllm_proxy.view import Member

AFFINITY_BYTES: Final = 1024
BALANCE_ABS: Final = 8
BALANCE_REL: Final = 1.5

_STAND_INS: Final[Mapping[Policy, Policy]] = {
    "lowest-latency": "least-loaded",
    "round-robin": "least-loaded",
    "cheapest": "cache-affinity",
}
_USER: Final = b'"user"'
_ROLE: Final = b'"role"'
_SEARCHED_BYTES: Final = 256 * 1024


class Balancer:
    """`draw` picks one of a sequence at random."""

    __slots__ = ("_draw",)

    def __init__(self, draw: Callable[[Sequence[Member]], Member] = random.choice) -> None:
        self._draw = draw

    def choose(self, members: Sequence[Member], policy: Policy | None, exchange: Exchange) -> Backend:
        """One of `members`, which must not be empty."""
        if len(members) == 1:
            return members[0].backend
        named = policy or DEFAULT_POLICY
        named = _STAND_INS.get(named, named)
        if named == "least-loaded":
            return self._least_loaded(members)
        key = affinity_key(exchange)
        if named == "weighted":
            return max(members, key=lambda m: score(key, m.backend.seed, m.weight)).backend
        return _by_affinity(members, key)

    def _least_loaded(self, members: Sequence[Member]) -> Backend:
        least = min(load(m) for m in members)
        equals = [m for m in members if load(m) == least]
        one, other = self._draw(equals), self._draw(equals)
        # A tie by load: the one that answered faster lately, if both are known.
        first, second = one.backend.latency, other.backend.latency
        return other.backend if first is not None and second is not None and second < first else one.backend


def load(member: Member) -> float:
    """What a backend has to do, in requests per unit of weight."""
    return member.backend.inflight / member.weight


def _by_affinity(members: Sequence[Member], key: int) -> Backend:
    """The first in the key's order that is not much hotter than the least loaded."""
    least = min(load(m) for m in members)
    even = len({m.weight for m in members}) == 1
    ranked = sorted(
        members,
        key=(lambda m: mix(key, m.backend.seed))
        if even
        else (lambda m: score(key, m.backend.seed, m.weight)),
        reverse=True,
    )
    for member in ranked:
        burden = load(member)
        if not (burden > least + BALANCE_ABS and burden > least * BALANCE_REL):
            return member.backend
    raise AssertionError("the least loaded is never too hot")


def affinity_key(exchange: Exchange) -> int:
    """The stable hash of the principal and the beginning of the conversation; computed once per request."""
    key = exchange.affinity
    if key is None:
        assert exchange.caller is not None
        assert exchange.peek is not None
        principal = exchange.caller.principal.id.encode()
        if exchange.form is None:
            start = conversation_start(exchange.peek, exchange.body)
        else:
            start = exchange.peek.model.encode()  # an upload is no turn of a conversation
        key = exchange.affinity = stable_hash(principal, start)
    return key


def conversation_start(seen: Peek, body: bytes | bytearray) -> bytes:
    """1 KiB from the first user message; agents' system prompts before it are all alike. Without messages: of
    the input, else of the body after the model's name."""
    messages = seen.members.get("messages")
    if messages is not None:
        text = bytes(memoryview(messages)[:_SEARCHED_BYTES])
        at = text.find(_USER)
        if at >= 0:
            return _message_around(text, at)
    elif (given := seen.members.get("input")) is not None:
        return bytes(memoryview(given)[:AFFINITY_BYTES])
    after = seen.model_span[1]
    return bytes(body[after : after + AFFINITY_BYTES])


def _message_around(text: bytes, at: int) -> bytes:
    """The beginning of the message whose role stands at `at`, and nothing of the next one: the first turn has
    none."""
    after = at + len(_USER)
    following = text[after : after + AFFINITY_BYTES]
    if following.lstrip()[:1] == b"}":  # the role is written last
        start = max(text.rfind(b'"content"', 0, at), 0)
        return text[start:at][:AFFINITY_BYTES]
    next_role = following.find(_ROLE)
    if next_role >= 0:
        following = following[:next_role]
    elif after + AFFINITY_BYTES < len(text):
        return following
    return following[: following.rfind(b"}") + 1]
