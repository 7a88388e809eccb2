"""What is counted while requests pass: plain integers in slots that are found once and added to without
locks, label look-ups or I/O. `exposition` turns them into Prometheus series when somebody asks.

A slot belongs to one (endpoint, model, backend). Series are sums over slots, so that one addition serves
several of them. Seconds throughout.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

REQUEST_BOUNDS = (
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
)
"""Upper bounds for durations and times to the first token: from a cache hit to the response timeout."""

GAP_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Upper bounds for the time between two tokens."""

OVERHEAD_BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 1.0)
"""Upper bounds for what the gateway itself adds to a request."""

OTHER = "other"
"""Model label of every name that is not configured: the label set must not grow with what clients send."""

NO_BACKEND = ""
"""Backend id of slots whose requests reached none."""

MAX_SLOTS = 50_000
"""Beyond it slots fold into `OTHER` and `NO_BACKEND`: configuration that churns for months stays bounded."""


STATUS_CLASSES: Mapping[int | None, str] = {
    status: "429" if status == 429 else f"{status // 100}xx" for status in range(100, 600)
}
"""Label of an upstream status: `2xx`…`5xx`, 429 apart. What is not here is `none`: no response."""


class Histogram:
    """Counts per bucket and their sum; the last bucket is everything above the bounds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds

    def add(self, other: Histogram) -> None:
        """Adds another histogram of the same bounds."""
        for index, count in enumerate(other.counts):
            self.counts[index] += count
        self.total += other.total


class Slot:
    """One (endpoint, model, backend)."""

    __slots__ = ("durations", "gaps", "overheads", "statuses", "ttfts")

    def __init__(self) -> None:
        self.statuses: dict[int, int] = {}
        self.durations = Histogram(REQUEST_BOUNDS)
        self.ttfts = Histogram(REQUEST_BOUNDS)
        self.gaps = Histogram(GAP_BOUNDS)
        self.overheads = Histogram(OVERHEAD_BOUNDS)

    def observe(
        self,
        status: int,
        duration_s: float,
        ttft_s: float | None = None,
        overhead_s: float | None = None,
        inter_token_s: float | None = None,
    ) -> None:
        """Counts one settled request.

        `status` is what the client got. `ttft_s` is for streams only. `overhead_s` is the time between accept
        and the request leaving for the backend. `inter_token_s` is the stream's mean time between tokens.
        """
        statuses = self.statuses
        statuses[status] = statuses.get(status, 0) + 1
        self.durations.observe(duration_s)
        if ttft_s is not None:
            self.ttfts.observe(ttft_s)
        if overhead_s is not None:
            self.overheads.observe(overhead_s)
        if inter_token_s is not None:
            self.gaps.observe(inter_token_s)

    def add(self, other: Slot) -> None:
        for status, count in other.statuses.items():
            self.statuses[status] = self.statuses.get(status, 0) + count
        self.durations.add(other.durations)
        self.ttfts.add(other.ttfts)
        self.gaps.add(other.gaps)
        self.overheads.add(other.overheads)


class Metrics:
    """All counters of this replica. Everything here is called from the event loop's thread only."""

    __slots__ = ("cut", "ejections", "failovers", "rejections", "slots", "unattributed", "upstream")

    def __init__(self) -> None:
        self.slots: dict[tuple[str, str, str], Slot] = {}
        self.upstream: dict[tuple[str, str], int] = {}
        self.failovers: dict[str, int] = {}
        self.rejections: dict[str, int] = {}
        self.unattributed: dict[str, int] = {}
        self.ejections: dict[tuple[str, str, str], int] = {}
        self.cut = 0

    def slot(self, endpoint: str, model: str, backend_id: str = NO_BACKEND) -> Slot:
        """The slot for an endpoint's label, a *configured* frontend model (else `OTHER`) and a backend's id.

        The same object for the same three until `retain` retires it: look it up per request, which costs one
        dictionary access, or keep it as long as the view that named the backend.
        """
        key = (endpoint, model, backend_id)
        found = self.slots.get(key)
        if found is None:
            if len(self.slots) >= MAX_SLOTS:
                key = (endpoint, OTHER, NO_BACKEND)
            found = self.slots.setdefault(key, Slot())
        return found

    def attempted(self, backend_id: str, status: int | None) -> None:
        """Counts what one attempt got from a backend; `None`: no response."""
        key = (backend_id, STATUS_CLASSES.get(status, "none"))
        self.upstream[key] = self.upstream.get(key, 0) + 1

    def failed_over(self, model: str) -> None:
        """Counts a request that moved on to another backend."""
        self.failovers[model] = self.failovers.get(model, 0) + 1

    def rejected(self, reason: str, *, attributed: bool) -> None:
        """Counts an answer of our own. `reason` is the error's code; `attributed`: the caller was known."""
        self.rejections[reason] = self.rejections.get(reason, 0) + 1
        if not attributed:
            self.unattributed[reason] = self.unattributed.get(reason, 0) + 1

    def ejected(self, backend_id: str, path: str, reason: str) -> None:
        key = (backend_id, path, reason)
        self.ejections[key] = self.ejections.get(key, 0) + 1

    def retain(self, backend_ids: frozenset[str]) -> None:
        """Folds the slots of backends that are gone into those of no backend: sums over backends stay exact,
        and the number of series follows the configuration."""
        for key in [key for key in self.slots if key[2] not in backend_ids and key[2] != NO_BACKEND]:
            gone = self.slots.pop(key)
            self.slot(key[0], key[1]).add(gone)
        self.upstream = {key: count for key, count in self.upstream.items() if key[0] in backend_ids}
        self.ejections = {key: count for key, count in self.ejections.items() if key[0] in backend_ids}
