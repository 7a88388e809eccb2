"""Tells the control plane how this replica sees its backends: `POST /health-report`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fastllm_proxy.backends import Backend
from fastllm_proxy.control_plane import ControlPlane, ControlPlaneError, TokenRefused
from fastllm_proxy.metrics import Metrics
from fastllm_proxy.observe import Log
from fastllm_shared.health import BackendView, HealthReport, encode_report

REPORT_SECONDS = 5.0
"""Deadline of one report: a late one is worth less than the next."""


def backend_views(backends: Iterable[Backend]) -> tuple[BackendView, ...]:
    """Each backend as this replica sees it. Gates are absent as long as flow control is."""
    return tuple(
        BackendView(
            backend_id=backend.id,
            provider=backend.provider.name,
            model=backend.model.name,
            healthy=backend.healthy,
            inflight=backend.inflight,
            ejected=backend.ejection,
        )
        for backend in backends
    )


class Reporter:
    """One turn is one report. `compose` builds it but for `unattributed`, which counts since the last report
    that arrived."""

    def __init__(
        self,
        *,
        control: ControlPlane,
        compose: Callable[[dict[str, int]], HealthReport],
        metrics: Metrics,
        log: Log,
    ) -> None:
        self._control = control
        self._compose = compose
        self._metrics = metrics
        self._log = log
        self._told: dict[str, int] = {}
        self._complaint: str | None = None

    async def turn(self) -> None:
        await self.report(REPORT_SECONDS)

    async def report(self, seconds: float) -> None:
        """Reports once, within so many seconds."""
        now = dict(self._metrics.unattributed)
        news = {
            reason: count - self._told.get(reason, 0)
            for reason, count in now.items()
            if count > self._told.get(reason, 0)
        }
        body = encode_report(self._compose(news))
        try:
            answer = await self._control.post("/health-report", body, deadline_seconds=seconds)
        except ControlPlaneError as error:
            refused = isinstance(error, TokenRefused)
            self._missed("proxy token not accepted" if refused else type(error).__name__, str(error))
            return
        if answer.status >= 300:
            self._missed(f"status {answer.status}", answer.excerpt)
            return
        self._told = now
        self._complaint = None

    def _missed(self, cause: str, detail: str) -> None:
        if cause != self._complaint:
            self._complaint = cause
            self._log.warning("health report not accepted", cause=cause, detail=detail)
