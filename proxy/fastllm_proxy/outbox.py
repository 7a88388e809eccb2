"""Usage events on their way to the control plane: a bounded queue, batches, one of them in flight.

    put → queue → batch → POST /usage → acknowledged → next

A batch that is not acknowledged is sent again, for ever; the control plane stores an event's id once. One
that it refuses as invalid is halved until the bad event stands alone. `--usage-spool` will stand between
queue and post: a batch is then appended to disk before it leaves (nothing is spooled so far).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable

import msgspec

from fastllm_proxy.control_plane import ControlPlane, ControlPlaneError, TokenRefused
from fastllm_proxy.observe import Log
from fastllm_shared.health import UsageCounters
from fastllm_shared.usage import MAX_BATCH_EVENTS, UsageBatch, UsageEvent, decode_ack, encode_batch

CAPACITY_EVENTS = 10_000
BATCH_SECONDS = 1.0
POST_SECONDS = 10.0
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0
INVALID_STATUSES = frozenset((400, 413, 422))


class Outbox:
    """`put` is for the request path: synchronous and without I/O. `turn` is for the supervisor."""

    def __init__(
        self,
        *,
        replica: str,
        control: ControlPlane,
        log: Log,
        capacity_events: int = CAPACITY_EVENTS,
        batch_seconds: float = BATCH_SECONDS,
        post_seconds: float = POST_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._replica = replica
        self._control = control
        self._log = log
        self._capacity = capacity_events
        self._batch_seconds = batch_seconds
        self._post_seconds = post_seconds
        self._clock = clock
        self._queue: deque[UsageEvent] = deque()
        # What was taken off the queue and is not settled: parts of one batch, the first is sent next.
        self._parts: deque[tuple[UsageEvent, ...]] = deque()
        self._in_parts = 0
        self._served = 0
        self._stored = 0
        self._pause = 0.0
        self._complaint: str | None = None
        self._full_batch = asyncio.Event()
        self._turning = asyncio.Lock()
        self.dropped: dict[str, int] = {}

    def put(self, event: UsageEvent) -> None:
        """Takes one event and numbers it. Drops and counts it when the queue is full."""
        self._served += 1
        # The event is ours alone until it is sent: numbering it in place spares a copy of 30 fields.
        msgspec.structs.force_setattr(event, "sequence", self._served)
        waiting = len(self._queue) + self._in_parts
        if waiting >= self._capacity:
            self._drop("queue_full", 1)
            return
        self._queue.append(event)
        if waiting + 1 >= MAX_BATCH_EVENTS:
            self._full_batch.set()

    def counters(self) -> UsageCounters:
        """`served = stored + queued + spooled + dropped`, always."""
        return UsageCounters(
            served=self._served,
            stored=self._stored,
            queued=len(self._queue) + self._in_parts,
            spooled=0,
            dropped=sum(self.dropped.values()),
        )

    async def turn(self) -> float:
        """Gathers for up to a second, posts one batch once; returns the pause before the next turn."""
        if not self._parts and len(self._queue) < MAX_BATCH_EVENTS:
            self._full_batch.clear()
            try:
                async with asyncio.timeout(self._batch_seconds):
                    await self._full_batch.wait()
            except TimeoutError:
                pass
        await self._post_next(self._post_seconds)
        return self._pause

    async def flush(self, deadline: float) -> int:
        """Posts what is there until `deadline` (on the clock); returns how many events are left behind.

        Only for the end: nothing is put or turned at the same time or later.
        """
        pause = FIRST_PAUSE_SECONDS
        while self._queue or self._parts:
            left = deadline - self._clock()
            if left <= 0:
                break
            if await self._post_next(min(left, self._post_seconds)):
                continue
            await asyncio.sleep(max(0.0, min(pause, deadline - self._clock())))
        return len(self._queue) + self._in_parts

    async def _post_next(self, seconds: float) -> bool:
        """Posts the next part, if any; whether it is settled."""
        async with self._turning:
            part = self._next_part()
            if not part:
                return True
            try:
                body = encode_batch(UsageBatch(replica=self._replica, events=part))
            except UnicodeEncodeError as error:  # a lone surrogate has no JSON
                self._split(part, 0, str(error))
                return True
            try:
                answer = await self._control.post("/usage", body, deadline_seconds=seconds)
            except ControlPlaneError as error:
                self._postpone(type(error).__name__, str(error), refused=isinstance(error, TokenRefused))
                return False
            if answer.status in INVALID_STATUSES:
                self._split(part, answer.status, answer.excerpt)
                return True
            if answer.status != 200 or not _is_ack(answer.body):
                self._postpone(f"status {answer.status}", "not an acknowledgement", refused=False)
                return False
            self._settled(part)
            return True

    def _next_part(self) -> tuple[UsageEvent, ...]:
        if not self._parts and self._queue:
            size = min(len(self._queue), MAX_BATCH_EVENTS)
            self._parts.append(tuple(self._queue.popleft() for _ in range(size)))
            self._in_parts = size
        return self._parts[0] if self._parts else ()

    def _settled(self, part: tuple[UsageEvent, ...]) -> None:
        self._parts.popleft()
        self._in_parts -= len(part)
        self._stored += len(part)
        self._pause = 0.0
        if self._complaint is not None:
            self._complaint = None
            self._log.info("usage is accepted again", queued=len(self._queue) + self._in_parts)

    def _split(self, part: tuple[UsageEvent, ...], status: int, answer: str) -> None:
        self._parts.popleft()
        self._pause = 0.0
        if len(part) > 1:
            middle = len(part) // 2
            self._parts.extendleft((part[middle:], part[:middle]))
            return
        self._in_parts -= 1
        self._drop("invalid", 1)
        self._log.error(
            "usage event refused as invalid",
            event_id=part[0].id,
            request_id=part[0].request_id,
            status=status,
            answer=answer,
        )

    def _postpone(self, cause: str, detail: str, *, refused: bool) -> None:
        doubled = min(max(self._pause * 2, FIRST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)
        self._pause = doubled * random.uniform(0.75, 1.0)  # noqa: S311 - spreads replicas, guards nothing
        if self._complaint == cause:
            return
        self._complaint = cause
        event = "proxy token not accepted" if refused else "usage not accepted, kept and sent again"
        self._log.warning(event, cause=cause, detail=detail, queued=len(self._queue) + self._in_parts)

    def _drop(self, reason: str, count: int) -> None:
        if reason not in self.dropped:
            self._log.error("usage events are being dropped", reason=reason)
        self.dropped[reason] = self.dropped.get(reason, 0) + count


def _is_ack(body: bytes) -> bool:
    try:
        decode_ack(body)
    except msgspec.DecodeError:  # some other server's 200: taking it for stored would lose the batch
        return False
    return True
