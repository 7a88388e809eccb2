"""The routing engine: rules and targets → what to try, in which order. Pure; proxies and the dry run share
it.

Two steps: `decide` finds the rule that applies and with it a list of targets; `arrange` puts the chosen
target first and keeps the rest in their order as the failover chain. Who serves a target (backends, their
health and load) is not known here.

The evaluation of rules is not here yet: `decide` goes to the default targets. It will stand in
`_first_match`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Protocol, TypeVar

import msgspec

from fastllm_shared.snapshot import FrontendModelEntry, Policy, RuleEntry

_MASK = 2**64 - 1


class Facts(msgspec.Struct, frozen=True):
    """What conditions can ask of a request. Token figures are estimates; `now_unix` is in seconds."""

    principal: str
    roles: tuple[str, ...]
    stream: bool
    now_unix: float
    headers: Mapping[str, str] = {}
    prompt_tokens: int | None = None
    max_tokens: int | None = None
    budget_used_percent: float | None = None
    inflight_per_backend: float | None = None


class Rejected(msgspec.Struct, frozen=True):
    """A rule that did not apply, and the condition that failed."""

    position: int
    failed: str


class Decision(msgspec.Struct, frozen=True):
    """`rule` is the position of the rule that decided; `None`: the default targets apply."""

    rule: int | None = None
    policy: Policy | None = None
    tag: str | None = None
    denied_status: int | None = None
    denied_message: str | None = None
    rejected: tuple[Rejected, ...] = ()


def decide(model: FrontendModelEntry, facts: Facts) -> Decision:
    """Which rule of `model` applies."""
    rule, rejected = _first_match(model.rules, facts)
    if rule is None:
        return Decision(policy=model.policy, rejected=rejected)
    return Decision(
        rule=rule.position,
        policy=rule.policy or model.policy,
        tag=rule.tag,
        denied_status=rule.deny_status if rule.action == "deny" else None,
        denied_message=rule.deny_message if rule.action == "deny" else None,
        rejected=rejected,
    )


def _first_match(
    rules: tuple[RuleEntry, ...],  # noqa: ARG001 - the place where conditions will be evaluated
    facts: Facts,  # noqa: ARG001
) -> tuple[RuleEntry | None, tuple[Rejected, ...]]:
    return None, ()


class Weighted(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def weight(self) -> int: ...


T = TypeVar("T", bound=Weighted)


def arrange(targets: Sequence[T], key: int) -> tuple[T, ...]:
    """The weighted split: the target that `key` (64 bits) falls to, then the others in their order.

    Weighted rendezvous hashing: every replica agrees, and changing one weight moves only the keys that it
    must. A weight of 0 is for failover alone.
    """
    if len(targets) < 2:
        return tuple(targets)
    chosen = max(
        range(len(targets)), key=lambda at: score(key, seed_of(targets[at].name), targets[at].weight)
    )
    return (targets[chosen], *targets[:chosen], *targets[chosen + 1 :])


def stable_hash(*parts: bytes) -> int:
    """64 bits that are the same on every replica. Parts are kept apart."""
    digest = blake2b(digest_size=8)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return int.from_bytes(digest.digest(), "big")


def seed_of(name: str) -> int:
    """What hashing knows a name by."""
    return stable_hash(name.encode())


def mix(key: int, seed: int) -> int:
    """64 well-mixed bits of the two (the finaliser of SplitMix64, by Steele, Lea and Flood)."""
    mixed = (key ^ seed) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return mixed ^ (mixed >> 31)


def score(key: int, seed: int, weight: float) -> float:
    """Rendezvous score: whoever has the highest for a key owns it, in proportion to the weights."""
    if weight <= 0:
        return -math.inf
    # 52 bits and a half: never 0 and never 1, both exactly representable.
    return -weight / math.log(((mix(key, seed) >> 12) + 0.5) / 2**52)
