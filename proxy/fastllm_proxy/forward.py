"""Sends a request to backends until one answers.

Until a byte has gone to the client, an attempt that fails may be followed by one elsewhere: see `candidates`
for who is next, `retries` for how many that may be, `dispatch` for one attempt, `delivery` and `verdict` for
what counts as a failure, `outcomes` for which attempt decides when all have failed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from fastllm_proxy.candidates import Candidates
from fastllm_proxy.delivery import send_answer
from fastllm_proxy.errors import Refused
from fastllm_proxy.outcomes import Failure, Outcomes

if TYPE_CHECKING:
    from fastllm_proxy.backends import Backend
    from fastllm_proxy.balancer import Balancer
    from fastllm_proxy.dispatch import Dispatcher
    from fastllm_proxy.exchange import Exchange
    from fastllm_proxy.gate import Gates
    from fastllm_proxy.metrics import Metrics
    from fastllm_proxy.retries import RetryBudget

BACK_OFF_SECONDS: Final = (0.025, 0.05, 0.1)


class Forwarder:
    __slots__ = (
        "_balancer",
        "_dispatcher",
        "_gates",
        "_max_retries",
        "_metrics",
        "_noise",
        "_retries",
        "_sleep",
    )

    def __init__(
        self,
        *,
        max_retries: int,
        balancer: Balancer,
        gates: Gates,
        dispatcher: Dispatcher,
        retries: RetryBudget,
        metrics: Metrics,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        noise: Callable[[], float] = random.random,
    ) -> None:
        """`max_retries`: further backends per target. `sleep` waits between attempts; `noise` gives numbers
        in [0, 1) for their jitter."""
        self._max_retries = max_retries
        self._balancer = balancer
        self._gates = gates
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._sleep = sleep
        self._noise = noise
        self._retries = retries

    async def forward(self, exchange: Exchange) -> None:
        """Answers the client, or raises `Refused`."""
        candidates = Candidates(exchange, self._balancer, self._gates, self._max_retries)
        backend = candidates.next()
        if backend is None:
            raise _no_backend(exchange)
        self._retries.begun += 1
        try:
            failure = await self._dispatcher.dispatch(exchange, backend)
            if failure is not None:
                await self._go_on(exchange, candidates, failure)
        finally:
            self._retries.ended += 1

    async def _go_on(self, exchange: Exchange, candidates: Candidates, first: Failure) -> None:
        """What follows a first attempt that failed."""
        assert exchange.frontend is not None
        model = exchange.frontend.name
        outcomes = Outcomes(first, retry_on_timeout=exchange.frontend.entry.retry_on_timeout)
        try:
            while (backend := self._next(exchange, candidates, outcomes)) is not None:
                self._metrics.failed_over(model)
                await self._sleep(self._pause(exchange.attempts, busy=outcomes.last.kind == "busy"))
                failure = await self._dispatcher.dispatch(exchange, backend)
                if failure is None:
                    return
                outcomes.add(failure)
        finally:
            self._retries.settle(exchange)
        send_answer(exchange, outcomes.decide(model))

    def _next(self, exchange: Exchange, candidates: Candidates, outcomes: Outcomes) -> Backend | None:
        """The backend that may be tried next, its retry counted."""
        if not outcomes.may_retry:
            return None
        free = outcomes.moves_on_freely
        if not (free or self._retries.allows_another(exchange)):
            return None
        backend = candidates.next()
        if backend is not None and not free:
            self._retries.spend(exchange)
        return backend

    def _pause(self, attempts: int, *, busy: bool) -> float:
        base = BACK_OFF_SECONDS[min(attempts, len(BACK_OFF_SECONDS)) - 1] * (2 if busy else 1)
        return base * (0.5 + self._noise())


def _no_backend(exchange: Exchange) -> Refused:
    assert exchange.frontend is not None
    return Refused(503, "no_backend", f"no backend serves {exchange.frontend.name} at present")
