"""The plain probe: asks each distinct endpoint for its models, and takes a backend out or back in.

An endpoint is asked once however many backends use it: `GET {api_base}/models` with its credential, on a
connection of its own, head and body under one deadline. A failed probe is a suspicion: a backend that is out
by probe alone is still tried, last. What requests themselves show (ejection by traffic) will be the second
path; the probe never shortens it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable

from fastllm_proxy.backends import Backend
from fastllm_proxy.metrics import Metrics
from fastllm_proxy.observe import Log
from fastllm_proxy.probe import EndpointKey, Verdict, endpoint_key, probe
from fastllm_shared.health import Ejection, EjectionReason

CONCURRENT_PROBES = 64
ABSENT_PAUSE_INTERVALS = 30
"""An endpoint that has no `/models` is asked again after so many intervals: it may have been starting."""


class Endpoint:
    """One endpoint's state. `due_at` is on the clock."""

    __slots__ = ("backends", "due_at", "failures", "task")

    def __init__(self, due_at: float) -> None:
        self.backends: tuple[Backend, ...] = ()
        self.due_at = due_at
        self.failures = 0
        self.task: asyncio.Task[None] | None = None


class Prober:
    """Each turn starts the probes that are due; a slow endpoint holds up nobody else's.

    `backends` returns those of the present view. `clock` gives monotonic seconds, `noise` a number in [0, 1).
    """

    def __init__(
        self,
        *,
        backends: Callable[[], Iterable[Backend]],
        metrics: Metrics,
        log: Log,
        version: str,
        interval_seconds: float,
        timeout_seconds: float,
        unhealthy_after: int,
        clock: Callable[[], float] = time.monotonic,
        noise: Callable[[], float] = random.random,
    ) -> None:
        self._backends = backends
        self._metrics = metrics
        self._log = log
        self._user_agent = f"fastllm-proxy/{version} (probe)"
        self._interval = interval_seconds
        self._timeout = timeout_seconds
        self._unhealthy_after = unhealthy_after
        self._clock = clock
        self._noise = noise
        self._endpoints: dict[EndpointKey, Endpoint] = {}
        self._slots = asyncio.Semaphore(CONCURRENT_PROBES)

    @property
    def tick_seconds(self) -> float:
        """How often a turn should be made so that probes are on time."""
        return min(1.0, self._interval / 10)

    @property
    def busy(self) -> int:
        """How many probes are under way."""
        return sum(e.task is not None and not e.task.done() for e in self._endpoints.values())

    async def turn(self) -> float:
        """Starts what is due; returns the pause before the next turn. Raises what a probe should not have."""
        self._adopt(self._backends())
        now = self._clock()
        broken: list[BaseException] = []
        for endpoint in self._endpoints.values():
            if endpoint.task is not None and endpoint.task.done():
                if (error := endpoint.task.exception()) is not None:
                    broken.append(error)
                endpoint.task = None
            if endpoint.task is None and endpoint.due_at <= now:
                endpoint.task = asyncio.create_task(self._probe(endpoint))
        if broken:
            raise broken[0]
        return self.tick_seconds

    async def close(self) -> None:
        """Ends the probes under way."""
        tasks = [endpoint.task for endpoint in self._endpoints.values() if endpoint.task is not None]
        self._endpoints.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _adopt(self, backends: Iterable[Backend]) -> None:
        """Follows the view: state stays with an endpoint as long as it is the same."""
        grouped: dict[EndpointKey, list[Backend]] = {}
        for backend in backends:
            if backend.provider.kind != "cloud":
                grouped.setdefault(endpoint_key(backend.provider), []).append(backend)
        for key in [key for key in self._endpoints if key not in grouped]:
            gone = self._endpoints.pop(key)
            if gone.task is not None:
                gone.task.cancel()
        for key, members in grouped.items():
            endpoint = self._endpoints.get(key)
            if endpoint is None:
                # Spread over one interval, so that replicas and endpoints that start together part.
                endpoint = self._endpoints[key] = Endpoint(self._clock() + self._interval * self._noise())
            endpoint.backends = tuple(members)

    async def _probe(self, endpoint: Endpoint) -> None:
        # Due again even if what follows raises: a probe that is broken must not run in a tight loop.
        endpoint.due_at = self._clock() + self._interval * (0.8 + 0.4 * self._noise())
        async with self._slots:
            verdict = await probe(endpoint.backends[0], self._user_agent, self._deadline(endpoint))
        if verdict == "absent":
            endpoint.due_at = self._clock() + self._interval * ABSENT_PAUSE_INTERVALS
        self._judge(endpoint, verdict)

    def _deadline(self, endpoint: Endpoint) -> float:
        """The most patient of the endpoint's backends decides."""
        return max(backend.entry.health_timeout_seconds or self._timeout for backend in endpoint.backends)

    def _judge(self, endpoint: Endpoint, verdict: Verdict) -> None:
        if verdict == "passed" or verdict == "absent":
            endpoint.failures = 0
            for backend in endpoint.backends:
                self._restore(backend)
            return
        endpoint.failures += 1
        for backend in endpoint.backends:
            if endpoint.failures >= (backend.entry.unhealthy_after or self._unhealthy_after):
                self._eject(backend, verdict)

    def _eject(self, backend: Backend, reason: EjectionReason) -> None:
        before = backend.ejection
        if before is not None and (before.path != "probe" or before.reason == reason):
            return
        backend.ejection = Ejection(path="probe", reason=reason)
        if before is None:
            self._metrics.ejected(backend.id, "probe", reason)
            self._log.warning(
                "backend out of rotation", **_facts(backend), path="probe", reason=reason, until=None
            )

    def _restore(self, backend: Backend) -> None:
        if backend.ejection is not None and backend.ejection.path == "probe":
            backend.ejection = None
            self._log.info("backend healthy, back in rotation", **_facts(backend), path="probe")


def _facts(backend: Backend) -> dict[str, str]:
    return {"backend": backend.id, "provider": backend.provider.name, "model": backend.model.name}
