"""The composition root: builds every part of a replica once, wires it, serves, drains, stops."""

from __future__ import annotations

import asyncio
import gc
import socket
import time
from collections.abc import Iterable
from typing import Any

import msgspec

from fastllm_proxy.accept import EdgeSettings, ProxyServer
from fastllm_proxy.access_log import AccessLog
from fastllm_proxy.backends import Backend
from fastllm_proxy.balancer import Balancer
from fastllm_proxy.config import ProxySettings
from fastllm_proxy.control_plane import ControlPlane
from fastllm_proxy.delivery import Delivery
from fastllm_proxy.dispatch import Dispatcher, Patience
from fastllm_proxy.exposition import Exposition
from fastllm_proxy.forward import Forwarder
from fastllm_proxy.gate import Gates
from fastllm_proxy.health import Prober
from fastllm_proxy.lag import INTERVAL_SECONDS, LoopLag
from fastllm_proxy.limits import Limits
from fastllm_proxy.listen import BACKLOG
from fastllm_proxy.local import LocalRoutes
from fastllm_proxy.loops import Supervisor
from fastllm_proxy.meter import Meter
from fastllm_proxy.metrics import Metrics
from fastllm_proxy.observe import Log
from fastllm_proxy.outbox import BATCH_SECONDS, LONGEST_PAUSE_SECONDS, POST_SECONDS, Outbox
from fastllm_proxy.pipeline import Pipeline
from fastllm_proxy.pools import PoolFactory
from fastllm_proxy.relay import RelayTimes
from fastllm_proxy.report import REPORT_SECONDS, Reporter
from fastllm_proxy.retries import RetryBudget
from fastllm_proxy.sink import LineSink
from fastllm_proxy.snapshots import BackendRegistry, SnapshotStore
from fastllm_proxy.spool import Spools
from fastllm_proxy.status import Identity, Intervals, Status
from fastllm_proxy.subscribe import Subscriber
from fastllm_proxy.timers import TimerWheel
from fastllm_proxy.tls import CLOSING_SECONDS, HANDSHAKE_SECONDS, ListenerCertificate
from fastllm_proxy.traffic import Traffic
from fastllm_shared.addresses import AddressPolicy
from fastllm_shared.snapshot import Snapshot

FILES_PER_REQUEST = 3
"""Client, backend and a spare: without `--max-inflight` a third of the file limit may be in flight."""

LOG_FLUSH_SECONDS = 1.0

CANCEL_SECONDS = 0.05
"""What the tasks of cut requests get for settling."""

LAST_REPORT_SECONDS = 1.0

CERTIFICATE_SECONDS = 5.0
"""Between two looks at the files of the listener's certificate."""


class Surroundings(msgspec.Struct, frozen=True):
    """What the process brings: who it is, where its lines go, how many files it may open, its port."""

    identity: Identity
    log: Log
    out: LineSink
    err: LineSink
    file_limit: int
    port: int


class Replica:
    """Every part of one replica, wired. Built inside the running loop. Implements `drain.Serving`."""

    def __init__(self, settings: ProxySettings, around: Surroundings) -> None:
        self._settings = settings
        self._around = around
        version = around.identity.version
        self._access_log = AccessLog(around.out, settings.log_format)
        self._metrics = Metrics()
        self._timers = TimerWheel(asyncio.get_running_loop())
        self._spools = Spools(around.log)
        self._supervisor = Supervisor(around.log)
        self._control = ControlPlane(
            settings.control_url, settings.tokens, f"fastllm-proxy/{version}", settings.ca_bundle
        )
        self._outbox = Outbox(replica=around.identity.replica, control=self._control, log=around.log)
        self._registry = BackendRegistry(self._pools(), around.log)
        self._store = SnapshotStore(self._registry)
        self._subscriber = Subscriber(
            control=self._control, accept=self._accept, log=around.log, poll_seconds=settings.config_poll
        )
        self._prober = self._make_prober(version)
        self._lag = LoopLag()
        self._status = self._make_status()
        self._reporter = Reporter(
            control=self._control, compose=self._status.report, metrics=self._metrics, log=around.log
        )
        self._server = self._make_server(version)
        self._certificate = _certificate(settings)
        self._listeners: list[asyncio.Server] = []
        self._supervise()

    async def start(self, sockets: Iterable[socket.socket]) -> None:
        """Serves from here on."""
        loop = asyncio.get_running_loop()
        tls: dict[str, Any] = {}
        if self._certificate is not None:
            tls = {
                "ssl": self._certificate.context,
                "ssl_handshake_timeout": HANDSHAKE_SECONDS,
                "ssl_shutdown_timeout": CLOSING_SECONDS,
            }
        for bound in sockets:
            self._listeners.append(await loop.create_server(self._server, sock=bound, backlog=BACKLOG, **tls))
        self._supervisor.start()

    def look_at_certificate(self) -> None:
        """Renews the listener's certificate now rather than at the next look, if its files have changed."""
        self._supervisor.soon("certificate")

    async def close(self) -> None:
        """Ends at once everything that `start` began."""
        self.stop_listening()
        await self._server.finish(0)
        await self._supervisor.stop()
        await self._prober.close()
        await self._registry.close()
        await self._control.close()
        self._timers.close()
        self._spools.close()
        self._access_log.flush()

    # What `drain` asks for

    @property
    def inflight(self) -> int:
        return self._server.inflight

    def refuse_readiness(self) -> None:
        self._status.draining = True
        self._server.draining = True
        self._supervisor.soon("report")

    def stop_listening(self) -> None:
        for listener in self._listeners:
            listener.close()

    async def finish(self, seconds: float) -> int:
        cut = await self._server.finish(seconds)
        self._metrics.cut += cut
        if cut:
            # The cut requests' tasks are being cancelled: their usage events are made as they end.
            await asyncio.sleep(CANCEL_SECONDS)
        return cut

    async def flush(self, deadline: float) -> int:
        await self._supervisor.stop()
        left_behind = await self._outbox.flush(deadline)
        if (left := deadline - time.monotonic()) > 0:
            await self._reporter.report(min(left, LAST_REPORT_SECONDS))
        return left_behind

    # Wiring

    def _pools(self) -> PoolFactory:
        addresses = AddressPolicy(
            deny_private=self._settings.deny_private_upstreams, own_ports=frozenset((self._around.port,))
        )
        return PoolFactory(addresses, self._timers, self._settings.ca_bundle)

    def _make_prober(self, version: str) -> Prober:
        return Prober(
            backends=self._backends,
            metrics=self._metrics,
            log=self._around.log,
            version=version,
            interval_seconds=self._settings.health_interval,
            timeout_seconds=self._settings.health_timeout,
            unhealthy_after=self._settings.unhealthy_after,
        )

    def _make_status(self) -> Status:
        return Status(
            identity=self._around.identity,
            intervals=Intervals(self._settings.config_poll, self._settings.health_report_interval),
            store=self._store,
            subscriber=self._subscriber,
            outbox=self._outbox,
            supervisor=self._supervisor,
            lag=self._lag,
            access_log=self._access_log,
            sinks=(self._around.out, self._around.err),
        )

    def _make_server(self, version: str) -> ProxyServer:
        settings = self._settings
        exposition = Exposition(self._metrics, self._status.readings, version=version)
        most = settings.max_inflight or max(1, self._around.file_limit // FILES_PER_REQUEST)
        return ProxyServer(
            self._make_pipeline().handle,
            views=self._store,
            local=LocalRoutes(self._status, exposition.render, settings.tokens),
            timers=self._timers,
            settings=EdgeSettings(
                max_inflight=most,
                max_connections=max(most, self._around.file_limit // 2),
                max_buffered_bytes=settings.max_buffered_mb * 1024 * 1024,
            ),
            metrics=self._metrics,
            access_log=self._access_log,
            log=self._around.log,
        )

    def _make_pipeline(self) -> Pipeline:
        settings = self._settings
        gates, retries, balancer = Gates(), RetryBudget(), Balancer()
        dispatcher = Dispatcher(
            patience=Patience(settings.upstream_timeout, settings.response_timeout),
            delivery=Delivery(timers=self._timers, times=RelayTimes(ping=settings.sse_ping)),
            gates=gates,
            retries=retries,
            traffic=Traffic(),
            metrics=self._metrics,
            log=self._around.log,
        )
        forwarder = Forwarder(
            max_retries=settings.max_retries,
            balancer=balancer,
            gates=gates,
            dispatcher=dispatcher,
            retries=retries,
            metrics=self._metrics,
        )
        meter = Meter(
            replica=self._around.identity.replica,
            outbox=self._outbox,
            metrics=self._metrics,
            access_log=self._access_log,
        )
        return Pipeline(
            balancer=balancer,
            forwarder=forwarder,
            limits=Limits(),
            meter=meter,
            metrics=self._metrics,
            spools=self._spools,
            max_body_bytes=settings.max_body_mb * 1024 * 1024,
        )

    def _supervise(self) -> None:
        add = self._supervisor.add
        poll, report = self._settings.config_poll, self._settings.health_report_interval
        posting = POST_SECONDS + LONGEST_PAUSE_SECONDS
        subscriber = self._subscriber
        add("subscribe", subscriber.turn, interval_seconds=poll, turn_seconds=subscriber.turn_seconds)
        add("outbox", self._outbox.turn, interval_seconds=BATCH_SECONDS, turn_seconds=posting)
        add("report", self._reporter.turn, interval_seconds=report, turn_seconds=REPORT_SECONDS)
        add("probe", self._prober.turn, interval_seconds=self._prober.tick_seconds)
        add("lag", self._lag.turn, interval_seconds=INTERVAL_SECONDS)
        if self._certificate is not None:
            add("certificate", self._renew_certificate, interval_seconds=CERTIFICATE_SECONDS)
        add("access_log", self._flush_access_log, interval_seconds=LOG_FLUSH_SECONDS)

    def _backends(self) -> Iterable[Backend]:
        view = self._store.current
        return () if view is None else view.backends.values()

    def _accept(self, snapshot: Snapshot) -> None:
        first = self._store.current is None
        self._store.accept(snapshot)
        self._metrics.retain(frozenset(backend.id for backend in self._backends()))
        if first:
            freeze_heap()

    async def _renew_certificate(self) -> None:
        assert self._certificate is not None
        try:
            if await asyncio.to_thread(self._certificate.renew):
                self._around.log.info("certificate renewed")
        except ValueError as error:
            self._around.log.error("certificate not renewed, the old one stays", reason=str(error))

    async def _flush_access_log(self) -> None:
        self._access_log.flush()


def _certificate(settings: ProxySettings) -> ListenerCertificate | None:
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    return ListenerCertificate(settings.tls_cert, settings.tls_key)


def freeze_heap() -> None:
    """Takes what start and the first snapshot made out of the garbage collector's sight: it lives as long as
    the process, and a full collection that walks it stops every stream for 20 to 60 ms. The thresholds stay
    as they are: under load all other collections together take 0.1 % of the time."""
    gc.collect()
    gc.freeze()
