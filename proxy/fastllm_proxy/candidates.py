"""Which backends one request may try, in which order, and how often.

the chain's targets in order; of each, `1 + max_retries` backends that are in rotation, chosen one at a time
then, if the chain has nothing further: those that are out by probe alone (a suspicion) and do not cool, last
if every backend was out from the start: all of them, cooling before ejected ones
never the same backend twice, at most `MAX_ATTEMPTS` in all
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fastllm_proxy.backends import Backend
    from fastllm_proxy.balancer import Balancer
    from fastllm_proxy.exchange import Exchange
    from fastllm_proxy.gate import Gates
    from fastllm_proxy.view import Member, Target

MAX_ATTEMPTS: Final = 4


class Candidates:
    """The backends that one request may try, each decided on when it is asked for: load and health move
    meanwhile.

    `_tried` are backend ids; `_used` counts tries by target.
    """

    __slots__ = (
        "_balancer",
        "_clock",
        "_exchange",
        "_found_any",
        "_gates",
        "_max_per_target",
        "_tried",
        "_used",
    )

    def __init__(
        self,
        exchange: Exchange,
        balancer: Balancer,
        gates: Gates,
        max_retries: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._exchange = exchange
        self._balancer = balancer
        self._gates = gates
        self._max_per_target = 1 + max_retries
        self._clock = clock
        self._tried: set[str] = set()
        self._used: dict[int, int] = {}
        self._found_any = False

    def next(self) -> Backend | None:
        """The next one to try; `None` when there is nothing further."""
        chain = self._exchange.chain
        if not chain or len(self._tried) >= MAX_ATTEMPTS:
            return None
        dialect = self._exchange.endpoint.dialect
        now = self._clock()
        for at, target in enumerate(chain):
            if self._used.get(at, 0) >= self._max_per_target:
                continue
            usable = [m for m in target.by_dialect[dialect] if m.backend.is_in_rotation(now)]
            if self._tried:
                usable = [m for m in usable if m.backend.id not in self._tried]
            if usable:
                self._found_any = True
                return self._take(at, target, usable)
        return self._last_resort(chain, now)

    def _take(self, at: int, target: Target, usable: list[Member]) -> Backend:
        if len(usable) > 1:
            usable = [m for m in usable if self._gates.has_room(m.backend)] or usable
        backend = self._balancer.member(usable, target.policy, self._exchange, target.name).backend
        self._tried.add(backend.id)
        self._used[at] = self._used.get(at, 0) + 1
        return backend

    def _last_resort(self, chain: tuple[Target, ...], now: float) -> Backend | None:
        best: tuple[int, int, Target] | None = None
        for at, target in enumerate(chain):
            if self._used.get(at, 0) < self._max_per_target:
                ranks = [_how_far_out(m.backend, now) for m in self._untried(target)]
                # When somebody was in rotation, of the others only a mere suspicion is worth a try.
                if ranks := [rank for rank in ranks if rank == _SUSPECTED or not self._found_any]:
                    found = (min(ranks), at, target)
                    best = found if best is None or found[0] < best[0] else best
        if best is None:
            return None
        rank, at, target = best
        return self._take(
            at, target, [m for m in self._untried(target) if _how_far_out(m.backend, now) == rank]
        )

    def _untried(self, target: Target) -> list[Member]:
        listed = target.by_dialect[self._exchange.endpoint.dialect]
        return [m for m in listed if m.backend.id not in self._tried]


_IN_ROTATION: Final = 0
_COOLING: Final = 1
_SUSPECTED: Final = 2
_SUSPECTED_AND_COOLING: Final = 3
_EJECTED: Final = 4


def _how_far_out(backend: Backend, now: float) -> int:
    cooling = backend.cooling_until > now
    ejection = backend.ejection
    if ejection is None:
        return _COOLING if cooling else _IN_ROTATION
    if ejection.path == "probe":
        return _SUSPECTED_AND_COOLING if cooling else _SUSPECTED
    return _EJECTED
