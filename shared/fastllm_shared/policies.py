"""The policies: which of several is chosen, the same for the backends of a target and for the targets of a
list. Pure but for chance, turns and the clock, which are handed in.

weighted        by the key of the conversation, in proportion to the weights, whatever the load
cache-affinity  the same, but passing over whoever is much hotter than the least loaded
least-loaded    the fewest requests in flight per unit of weight; of two drawn among equals the faster one
lowest-latency  the shortest time to the first byte lately; within an eighth of the best is equal, and so is
                who has no recent sample; of two drawn among equals the less loaded one
round-robin     in turn, in proportion to the weights
cheapest        the lowest expected cost of this request, unpriced ones last; among equals as cache-affinity

Of a target: its load is that of its least loaded backend, its latency that of its fastest, its cost that of
its cheapest, of those in rotation. A weight counts as a share of the capacity. Of targets, those are chosen
among whose context holds the request, that have a backend in rotation, and whose weight is not 0, as far as
there are such: each of these is given up rather than choosing none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar
from typing import Protocol as Interface

from fastllm_shared.hashing import mix, score
from fastllm_shared.snapshot import Policy, ProviderModelEntry
from fastllm_shared.targets import Dialect, Live, Member, Target, Targets
from fastllm_shared.turns import Turns

BALANCE_ABS: Final = 8
BALANCE_REL: Final = 1.5
LATENCY_SLACK: Final = 1.125

B = TypeVar("B", bound=Live)


class Asked(Interface):
    """What choosing asks of a request."""

    @property
    def dialect(self) -> Dialect: ...

    def conversation(self) -> int:
        """The key of its conversation: see `estimates.conversation_key`."""
        ...

    def exceeds(self, tokens: int) -> bool:
        """Whether prompt and requested generation together need more than so many tokens."""
        ...

    def expected_cost(self, model: ProviderModelEntry) -> float | None:
        """See `estimates.expected_cost`."""
        ...


class Chooser:
    """`draw` picks one of a sequence at random, `clock` is `time.monotonic`. One per replica: it owns the
    turns of `round-robin`, which are nobody else's to change."""

    __slots__ = ("_clock", "_draw", "_turns")

    def __init__(self, draw: Callable[[Sequence[int]], int], clock: Callable[[], float]) -> None:
        self._draw = draw
        self._clock = clock
        self._turns = Turns()

    def member(self, members: Sequence[Member[B]], policy: Policy, asked: Asked, list_name: str) -> Member[B]:
        """One of `members`, of which there must be one. `list_name` says whose turns are counted."""
        if len(members) == 1:
            return members[0]
        if policy == "cache-affinity":  # the usual one, without a detour
            loads = [m.backend.inflight / m.weight for m in members]
            seeds, weights = [m.backend.seed for m in members], [m.weight for m in members]
            return members[_by_affinity(seeds, weights, loads, asked.conversation())]
        return members[self._pick(policy, _Members(members, asked, self._clock), asked, list_name)]

    def arrange(self, targets: Targets[B], asked: Asked) -> tuple[Target[B], ...]:
        """The chain of a list: the chosen target, then the rest in order, then, in order, those whose context
        cannot hold the request."""
        listed = targets.all
        if len(listed) < 2:
            return listed
        smallest = targets.context_length
        small: tuple[Target[B], ...] = ()
        if smallest is not None and asked.exceeds(smallest):
            fitting = tuple(t for t in listed if _may_hold(t, asked))
            if fitting:
                small = tuple(t for t in listed if not _may_hold(t, asked))
                listed = fitting
        at = self._target(listed, targets, asked)
        if at:
            listed = (listed[at], *listed[:at], *listed[at + 1 :])
        return (*listed, *small) if small else listed

    def _target(self, among: Sequence[Target[B]], targets: Targets[B], asked: Asked) -> int:
        now, dialect = self._clock(), asked.dialect
        up = [at for at, t in enumerate(among) if _is_up(t, dialect, now)] or range(len(among))
        weighty = [at for at in up if among[at].weight > 0]
        if len(weighty) < 2:
            return (weighty or up)[0]
        chosen_among = [among[at] for at in weighty]
        if targets.policy == "weighted":  # the usual one, without a detour
            seeds, weights = [t.seed for t in chosen_among], [t.weight for t in chosen_among]
            return weighty[_owner(seeds, weights, asked.conversation())]
        options = _Targets(chosen_among, asked, now)
        return weighty[self._pick(targets.policy, options, asked, targets.name)]

    def _pick(self, policy: Policy, options: _Options, asked: Asked, list_name: str) -> int:
        if policy == "least-loaded":
            return self._least_loaded(options)
        if policy == "lowest-latency":
            return self._lowest_latency(options)
        if policy == "round-robin":
            return self._turns.take(list_name, options.names, options.weights)
        seeds, weights, key = options.seeds, options.weights, asked.conversation()
        if policy == "weighted":
            return _owner(seeds, weights, key)
        loads = options.loads()
        if policy == "cache-affinity":
            return _by_affinity(seeds, weights, loads, key)
        costs = options.costs()
        least = min((cost for cost in costs if cost is not None), default=None)
        equals = [at for at, cost in enumerate(costs) if cost == least]
        if len(equals) == 1:
            return equals[0]
        seeds, weights = [seeds[at] for at in equals], [weights[at] for at in equals]
        return equals[_by_affinity(seeds, weights, [loads[at] for at in equals], key)]

    def _least_loaded(self, options: _Options) -> int:
        loads = options.loads()
        least = min(loads)
        equals = [at for at, load in enumerate(loads) if load == least]
        if len(equals) == 1:
            return equals[0]
        # Two, not all: a reading is the same for all replicas, and the best by it would get all requests.
        one, other = self._draw(equals), self._draw(equals)
        latencies = options.latencies()
        first, second = latencies[one], latencies[other]
        return other if first is not None and second is not None and second < first else one

    def _lowest_latency(self, options: _Options) -> int:
        latencies = options.latencies()
        known = [latency for latency in latencies if latency is not None]
        limit = min(known) * LATENCY_SLACK if known else 0.0
        equals = [at for at, latency in enumerate(latencies) if latency is None or latency <= limit]
        if len(equals) == 1:
            return equals[0]
        # Two different ones, so that one that is stuck is always passed over.
        one = self._draw(equals)
        other = self._draw([at for at in equals if at != one])
        loads = options.loads()
        return other if loads[other] < loads[one] else one


class _Options(Interface):
    """What is chosen among, as parallel lists."""

    @property
    def names(self) -> list[str]: ...
    @property
    def seeds(self) -> list[int]: ...
    @property
    def weights(self) -> list[int]: ...

    def loads(self) -> list[float]: ...
    def latencies(self) -> list[float | None]: ...
    def costs(self) -> list[float | None]: ...


class _Members:
    __slots__ = ("_asked", "_clock", "_members")

    def __init__(self, members: Sequence[Member[B]], asked: Asked, clock: Callable[[], float]) -> None:
        self._members: Sequence[Member[Live]] = members  # type: ignore[assignment]  # only read
        self._asked = asked
        self._clock = clock

    @property
    def names(self) -> list[str]:
        return [m.backend.id for m in self._members]

    @property
    def seeds(self) -> list[int]:
        return [m.backend.seed for m in self._members]

    @property
    def weights(self) -> list[int]:
        return [m.weight for m in self._members]

    def loads(self) -> list[float]:
        return [m.backend.inflight / m.weight for m in self._members]

    def latencies(self) -> list[float | None]:
        now = self._clock()
        return [m.backend.recent_latency(now) for m in self._members]

    def costs(self) -> list[float | None]:
        return [self._asked.expected_cost(m.backend.model) for m in self._members]


class _Targets:
    __slots__ = ("_asked", "_now", "_targets")

    def __init__(self, targets: Sequence[Target[B]], asked: Asked, now: float) -> None:
        self._targets: Sequence[Target[Live]] = targets  # type: ignore[assignment]  # only read
        self._asked = asked
        self._now = now

    @property
    def names(self) -> list[str]:
        return [t.name for t in self._targets]

    @property
    def seeds(self) -> list[int]:
        return [t.seed for t in self._targets]

    @property
    def weights(self) -> list[int]:
        return [t.weight for t in self._targets]

    def loads(self) -> list[float]:
        return [
            min((m.backend.inflight / m.weight for m in self._up(t)), default=0.0) / t.weight
            for t in self._targets
        ]

    def latencies(self) -> list[float | None]:
        now = self._now
        return [
            min((s for m in self._up(t) if (s := m.backend.recent_latency(now)) is not None), default=None)
            for t in self._targets
        ]

    def costs(self) -> list[float | None]:
        cost = self._asked.expected_cost
        return [
            min((c for m in self._up(t) if (c := cost(m.backend.model)) is not None), default=None)
            for t in self._targets
        ]

    def _up(self, target: Target[Live]) -> Sequence[Member[Live]]:
        listed = target.by_dialect[self._asked.dialect]
        return [m for m in listed if m.backend.is_in_rotation(self._now)] or listed


def _may_hold(target: Target[B], asked: Asked) -> bool:
    return target.context_length is None or not asked.exceeds(target.context_length)


def _is_up(target: Target[B], dialect: Dialect, now: float) -> bool:
    for member in target.by_dialect[dialect]:  # noqa: SIM110 - a generator costs as much as all the rest
        if member.backend.is_in_rotation(now):
            return True
    return False


def _by_affinity(seeds: list[int], weights: list[int], loads: list[float], key: int) -> int:
    """Whom the key falls to, of those that are not much hotter than the least loaded."""
    least = min(loads)
    most = max(least + BALANCE_ABS, least * BALANCE_REL)
    if max(loads) <= most:
        return _owner(seeds, weights, key)
    cool = [at for at, load in enumerate(loads) if load <= most]
    return cool[_owner([seeds[at] for at in cool], [weights[at] for at in cool], key)]


def _owner(seeds: list[int], weights: list[int], key: int) -> int:
    """Whom the key falls to: rendezvous hashing, so that when one goes only its keys move."""
    if weights.count(weights[0]) == len(weights):
        mixed = [mix(key, seed) for seed in seeds]
        return mixed.index(max(mixed))
    scores = [score(key, seed, weight) for seed, weight in zip(seeds, weights, strict=True)]
    return scores.index(max(scores))
