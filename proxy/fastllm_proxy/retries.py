"""How many retries a replica makes: so few that they cannot multiply an overload."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

RETRIED_SHARE: Final = 0.2
MIN_RETRIES: Final = 3

WINDOW_SECONDS: Final = 1.0
"""What retries are counted over: calls that fail within milliseconds come one after the other, so that few
are under way at any moment however many there are."""

QUIET_IN_FLIGHT: Final = int(MIN_RETRIES / RETRIED_SHARE)
"""Up to here the least number counts for more than the share."""

QUIET_RETRIES: Final = 40
"""In so quiet a second: a fifth of 200 calls, which may come so slowly that few of them are in flight."""

_SAMPLE_SECONDS: Final = 0.05


class Answering(Protocol):
    """A request; its `status` is 0 until an answer has begun."""

    status: int


class RetryBudget:
    """Two bounds, each a share of requests and never less than `MIN_RETRIES`:

    - retries under way, of the requests in flight
    - retries made, of the requests that were in flight at any time of the last second. A request's retries
      count until it is answered and for a second more, as it counts itself: so 200 calls make 40 more,
      however long each of them takes to fail.

    While little is in flight (`QUIET_IN_FLIGHT`) the second bound is no share but `QUIET_RETRIES`, and while
    no more than `MIN_RETRIES` are there is none: a few callers, one call after the other, always fail over.

    `begun` and `ended` count the requests that are forwarded, and are all that one costs that does not fail.
    Everything else is looked at when something has failed:

    `_open`      requests that were retried and have no answer so far, with the number of their retries;
                 `_open_retries` is their sum
    `_settled`   when such requests were answered, and their retries; `_settled_retries` is the sum
    `_samples`   of the last second, one for each piece of it in which something failed: when, `ended` then,
                 and the most that was in flight
    """

    __slots__ = (
        "_clock",
        "_open",
        "_open_retries",
        "_samples",
        "_settled",
        "_settled_retries",
        "begun",
        "ended",
    )

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives seconds."""
        self._clock = clock
        self.begun = 0
        self.ended = 0
        self._open: dict[Answering, int] = {}
        self._open_retries = 0
        self._settled: deque[tuple[float, int]] = deque()
        self._settled_retries = 0
        self._samples: deque[tuple[float, int, int]] = deque()

    def allows_another(self, request: Answering) -> bool:
        """Whether `request`, of which an attempt has just failed, may be retried."""
        now = self._clock()
        self._look(now)
        if self._has_room(request):
            return True
        # A stream that was retried stays for minutes, and is no retry any more once it has begun.
        for one in [one for one in self._open if one.status]:
            self._settle(one, now)
        return self._has_room(request)

    def spend(self, request: Answering) -> None:
        """A retry begins."""
        self._open[request] = self._open.get(request, 0) + 1
        self._open_retries += 1

    def settle(self, request: Answering) -> None:
        """`request` has come to its end, whatever that was."""
        self._settle(request, self._clock())

    def resend(self) -> bool:
        """Whether a request may go once more to the backend whose kept connection was reset under it. It most
        likely was closed while idle, but the backend may have read the request: so what is sent again counts
        as a retry that is made at this moment. Up to `QUIET_RETRIES` a second always may, for engines close
        many idle connections at once. Counts it if so."""
        now = self._clock()
        self._look(now)
        lately = self.begun - self._samples[0][1]
        made = self._open_retries + self._settled_retries + 1
        if made > max(QUIET_RETRIES, lately * RETRIED_SHARE):
            return False
        self._settled.append((now, 1))
        self._settled_retries += 1
        return True

    def _settle(self, request: Answering, now: float) -> None:
        if retries := self._open.pop(request, 0):
            self._open_retries -= retries
            self._settled.append((now, retries))
            self._settled_retries += retries

    def _look(self, now: float) -> None:
        """Takes a sample, and forgets what is more than a second old."""
        samples, settled = self._samples, self._settled
        earliest = now - WINDOW_SECONDS
        while samples and samples[0][0] < earliest:
            samples.popleft()
        while settled and settled[0][0] < earliest:
            self._settled_retries -= settled.popleft()[1]
        in_flight = self.begun - self.ended
        if not samples or samples[-1][0] + _SAMPLE_SECONDS <= now:
            samples.append((now, self.ended, in_flight))
        elif samples[-1][2] < in_flight:
            at, ended, _ = samples[-1]
            samples[-1] = at, ended, in_flight

    def _has_room(self, request: Answering) -> bool:
        under_way = len(self._open) - (request in self._open)  # its own has just failed
        if under_way + 1 > max(MIN_RETRIES, (self.begun - self.ended) * RETRIED_SHARE):
            return False
        most = max(most for _, _, most in self._samples)
        if most <= MIN_RETRIES:
            return True
        made = self._open_retries + self._settled_retries + 1
        if most <= QUIET_IN_FLIGHT:
            return made <= QUIET_RETRIES
        lately = self.begun - self._samples[0][1]  # in flight now, or ended within the second
        return made <= max(MIN_RETRIES, lately * RETRIED_SHARE)
