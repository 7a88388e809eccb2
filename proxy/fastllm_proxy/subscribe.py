"""Polls the control plane for snapshots and hands them to the store.

The poll is held open there until there is something newer, so that a change arrives at once. What cannot be
used (undecodable, or older than what is served in the same history) is refused, counted and logged once per
cause; the old snapshot stays. `--snapshot-cache` will keep the wire bytes of the last accepted one on disk.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import msgspec

from fastllm_proxy.control_plane import Answer, AnswerTooLarge, ControlPlane, ControlPlaneError, TokenRefused
from fastllm_proxy.observe import Log
from fastllm_shared.snapshot import Snapshot, decode_snapshot

MARGIN_SECONDS = 10.0
"""What a poll may take beyond the time that it asks to be held open."""

FIRST_PAUSE_SECONDS = 0.1
MAX_SNAPSHOT_BYTES = 512 * 1024 * 1024


class Subscriber:
    """One turn is one poll. `accept` takes a snapshot into service and raises if it cannot; `clock` gives
    monotonic seconds."""

    def __init__(
        self,
        *,
        control: ControlPlane,
        accept: Callable[[Snapshot], None],
        log: Log,
        poll_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._control = control
        self._accept = accept
        self._log = log
        self._poll = poll_seconds
        self._clock = clock
        self._etag: str | None = None
        self._served: tuple[str, int] | None = None
        self._confirmed_at: float | None = None
        self._pause = 0.0
        self._complaint: str | None = None
        self.refused: dict[str, int] = {}

    @property
    def turn_seconds(self) -> float:
        """The longest that one turn may take."""
        return self._poll + MARGIN_SECONDS

    def age_seconds(self) -> float | None:
        """Seconds since the control plane last confirmed that what is served is current; `None`: never."""
        return None if self._confirmed_at is None else self._clock() - self._confirmed_at

    async def turn(self) -> float:
        """Polls once; returns the pause before the next poll: none after an answer that could be used."""
        headers = {} if self._etag is None else {"if-none-match": self._etag}
        asked_at = self._clock()
        try:
            answer = await self._control.get(
                f"/snapshot?wait={self._poll:g}",
                deadline_seconds=self.turn_seconds,
                headers=headers,
                max_bytes=MAX_SNAPSHOT_BYTES,
            )
        except TokenRefused as error:
            return self._missed("proxy token not accepted", "token", str(error))
        except AnswerTooLarge as error:
            return self._refuse("too_large", str(error))
        except ControlPlaneError as error:
            return self._missed("control plane not reached", "unreachable", str(error))
        if answer.status == 304 and self._etag is not None:
            return self._unchanged(asked_at)
        if answer.status != 200:
            return self._missed("control plane gave no snapshot", f"status {answer.status}", answer.excerpt)
        return self._take(answer, asked_at)

    def _take(self, answer: Answer, asked_at: float) -> float:
        try:
            snapshot = decode_snapshot(answer.body)
        except msgspec.MsgspecError as error:
            return self._refuse("undecodable", str(error))
        if self._served is not None and snapshot.history == self._served[0]:
            if snapshot.version < self._served[1]:
                return self._refuse("older", f"version {snapshot.version}, serving {self._served[1]}")
            if snapshot.version == self._served[1]:
                self._etag = answer.etag
                return self._unchanged(asked_at)
        try:
            self._accept(snapshot)
        except Exception as error:  # noqa: BLE001 - whatever one snapshot trips over, the old one goes on serving
            return self._refuse("unusable", f"{type(error).__name__}: {error}")
        self._served = (snapshot.history, snapshot.version)
        self._etag = answer.etag
        self._log.info(
            "snapshot accepted",
            version=snapshot.version,
            keys=len(snapshot.keys),
            frontend_models=len(snapshot.frontend_models),
            backends=len(snapshot.backends),
        )
        self._confirmed()
        return 0.0

    def _unchanged(self, asked_at: float) -> float:
        self._confirmed()
        # A control plane that does not hold polls open must not be asked in a tight loop.
        return min(self._poll, 1.0) if self._clock() - asked_at < self._poll / 2 else 0.0

    def _confirmed(self) -> None:
        self._confirmed_at = self._clock()
        self._pause = 0.0
        if self._complaint is not None:
            self._complaint = None
            self._log.info("control plane answers again")

    def _refuse(self, cause: str, detail: str) -> float:
        self.refused[cause] = self.refused.get(cause, 0) + 1
        return self._missed("snapshot refused", cause, detail)

    def _missed(self, event: str, cause: str, detail: str) -> float:
        doubled = min(max(self._pause * 2, FIRST_PAUSE_SECONDS), self._poll)
        self._pause = doubled
        if cause != self._complaint:
            self._complaint = cause
            self._log.warning(event, cause=cause, detail=detail)
        return doubled * random.uniform(0.5, 1.0)  # noqa: S311 - spreads replicas, guards nothing
