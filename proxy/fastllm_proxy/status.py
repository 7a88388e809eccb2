"""What this replica knows about itself, in the three forms in which it is asked: `/health`, the health
report, and the readings of `/metrics`."""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Callable
from typing import Literal

import msgspec

from fastllm_proxy.access_log import AccessLog
from fastllm_proxy.backends import Backend
from fastllm_proxy.exposition import Readings
from fastllm_proxy.lag import LoopLag
from fastllm_proxy.local import BackendHealth, EjectionDetail, Health
from fastllm_proxy.loops import Supervisor
from fastllm_proxy.outbox import Outbox
from fastllm_proxy.report import backend_views
from fastllm_proxy.sink import LineSink
from fastllm_proxy.snapshots import SnapshotStore
from fastllm_proxy.subscribe import Subscriber
from fastllm_proxy.view import FrontendModel, View
from fastllm_shared.health import HealthReport


class Identity(msgspec.Struct, frozen=True):
    """Who this replica is, for as long as the process lives. `started_at` is Unix seconds."""

    replica: str
    host: str
    version: str
    started_at: float


class Intervals(msgspec.Struct, frozen=True):
    """What the control plane must know to judge how far behind a replica may be, in seconds."""

    config_poll: float
    health_report: float


def new_identity(version: str, clock: Callable[[], float] = time.time) -> Identity:
    host = socket.gethostname()
    return Identity(replica=f"{host}-{uuid.uuid4().hex[:12]}", host=host, version=version, started_at=clock())


class Status:
    """Implements `local.ReplicaStatus`. `draining` is set when SIGTERM has come."""

    def __init__(
        self,
        *,
        identity: Identity,
        intervals: Intervals,
        store: SnapshotStore,
        subscriber: Subscriber,
        outbox: Outbox,
        supervisor: Supervisor,
        lag: LoopLag,
        access_log: AccessLog,
        sinks: tuple[LineSink, ...],
    ) -> None:
        self._identity = identity
        self._intervals = intervals
        self._store = store
        self._subscriber = subscriber
        self._outbox = outbox
        self._supervisor = supervisor
        self._lag = lag
        self._access_log = access_log
        self._sinks = sinks
        self.draining = False

    @property
    def ready(self) -> bool:
        return self._store.current is not None and not self.draining

    def health(self, *, detail: bool) -> Health:
        view = self._store.current
        return Health(
            status=self._word(view),
            snapshot_version=0 if view is None else view.version,
            snapshot_age_seconds=self._subscriber.age_seconds(),
            keys=0 if view is None else len(view.callers),
            backends=tuple(_backend_health(backend, detail) for backend in _backends_of(view)),
            loops=self._supervisor.views(),
        )

    def report(self, unattributed: dict[str, int]) -> HealthReport:
        view = self._store.current
        return HealthReport(
            replica=self._identity.replica,
            host=self._identity.host,
            version=self._identity.version,
            started_at=self._identity.started_at,
            snapshot_version=0 if view is None else view.version,
            config_poll_seconds=self._intervals.config_poll,
            health_report_interval_seconds=self._intervals.health_report,
            draining=self.draining,
            backends=backend_views(_backends_of(view)),
            usage=self._outbox.counters(),
            loops=self._supervisor.views(),
            unattributed=unattributed,
        )

    def readings(self) -> Readings:
        view = self._store.current
        usage = self._outbox.counters()
        return Readings(
            snapshot_version=0 if view is None else view.version,
            snapshot_age_seconds=self._subscriber.age_seconds(),
            usage_queued=usage.queued,
            usage_spooled_bytes=0,
            usage_dropped=self._outbox.dropped,
            snapshots_refused=self._subscriber.refused,
            log_lines_dropped=sum(sink.dropped for sink in self._sinks) + self._access_log.unwritable,
            loop_lag_seconds=self._lag.seconds,
            loop_failures={name: view.failures for name, view in self._supervisor.views().items()},
            backends=_backends_of(view),
        )

    def _word(self, view: View | None) -> Literal["ok", "degraded", "not_ready"]:
        if view is None:
            return "not_ready"
        if self._supervisor.overdue() or not all(_usable(model, view) for model in view.models.values()):
            return "degraded"
        return "ok"


def _backends_of(view: View | None) -> tuple[Backend, ...]:
    return () if view is None else tuple(view.backends.values())


def _usable(model: FrontendModel, view: View) -> bool:
    """Whether some request for it can be served. A model that a jump leads to is asked about itself."""
    if any(rule.jump in view.models for rule in model.entry.rules if rule.action == "jump"):
        return True
    lists = (model.default, *model.by_rule.values())
    return any(m.backend.healthy for targets in lists for target in targets.all for m in target.members)


def _backend_health(backend: Backend, detail: bool) -> BackendHealth:
    ejected = backend.ejection
    shown = None
    if ejected is not None:
        reason = ejected.reason if detail else msgspec.UNSET
        shown = EjectionDetail(path=ejected.path, until=ejected.until, reason=reason)
    return BackendHealth(
        backend_id=backend.id,
        model=backend.model.name,
        healthy=backend.healthy,
        inflight=backend.inflight,
        ejected=shown,
        provider=backend.provider.name if detail else msgspec.UNSET,
    )
