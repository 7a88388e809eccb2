"""Counters as Prometheus series, built when `/metrics` is asked for.

Every series carries `worker`. Backends are known by their id and provider model: provider names and addresses
are not for everybody who can reach the port.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator

import msgspec
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from fastllm_proxy.backends import Backend
from fastllm_proxy.metrics import NO_BACKEND, REQUEST_BOUNDS, Histogram, Metrics, Slot

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Readings(msgspec.Struct, frozen=True):
    """What is read when scraped. `snapshot_age_seconds` is `None` before the first snapshot."""

    snapshot_version: int
    snapshot_age_seconds: float | None
    usage_queued: int
    usage_spooled_bytes: int
    usage_dropped: dict[str, int]
    snapshots_refused: dict[str, int]
    log_lines_dropped: int
    loop_lag_seconds: float
    loop_failures: dict[str, int]
    backends: tuple[Backend, ...]


class Exposition:
    """Renders everything; `read` gives what is not counted."""

    def __init__(
        self, metrics: Metrics, read: Callable[[], Readings], *, version: str, worker: str = "0"
    ) -> None:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Series(metrics, read, version, worker))
        self._registry = registry

    def render(self) -> bytes:
        """The text format, version 0.0.4."""
        return generate_latest(self._registry)


class _Series(Collector):
    def __init__(self, metrics: Metrics, read: Callable[[], Readings], version: str, worker: str) -> None:
        self._metrics = metrics
        self._read = read
        self._version = version
        self._worker = worker
        self._process = ProcessCollector(registry=None)  # type: ignore[no-untyped-call]

    def collect(self) -> Iterator[Metric]:
        readings = self._read()
        for family in (
            *_requests(self._metrics),
            *_counts(self._metrics),
            *_backends(readings.backends),
            *_state(readings, self._version),
            *self._process.collect(),
        ):
            for index, sample in enumerate(family.samples):
                family.samples[index] = sample._replace(labels={**sample.labels, "worker": self._worker})
            yield family


def _requests(metrics: Metrics) -> Iterator[Metric]:
    """Slots summed over backends, and request durations summed over endpoints and models."""
    merged: dict[tuple[str, str], Slot] = {}
    by_backend: dict[str, Histogram] = {}
    for (endpoint, model, backend_id), slot in metrics.slots.items():
        merged.setdefault((endpoint, model), Slot()).add(slot)
        if backend_id != NO_BACKEND:
            by_backend.setdefault(backend_id, Histogram(REQUEST_BOUNDS)).add(slot.durations)
    requests = CounterMetricFamily(
        "fastllm_requests", "Requests by what the client got", labels=["endpoint", "model", "status"]
    )
    for (endpoint, model), slot in merged.items():
        for status, count in slot.statuses.items():
            requests.add_metric([endpoint, model, str(status)], count)
    yield requests
    for name, text, pick in (
        ("request_duration", "From accept to the last byte", lambda slot: slot.durations),
        ("time_to_first_token", "From accept to the first byte of a stream", lambda slot: slot.ttfts),
        ("inter_token", "Mean time between a stream's tokens", lambda slot: slot.gaps),
        ("overhead", "From accept to the request leaving for a backend", lambda slot: slot.overheads),
    ):
        yield _histograms(
            f"fastllm_{name}_seconds",
            text,
            ["endpoint", "model"],
            ((list(key), pick(slot)) for key, slot in merged.items()),
        )
    yield _histograms(
        "fastllm_backend_duration_seconds",
        "Requests by the backend that served them",
        ["backend"],
        (([backend_id], histogram) for backend_id, histogram in by_backend.items()),
    )


def _histograms(
    name: str, text: str, labels: list[str], rows: Iterable[tuple[list[str], Histogram]]
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(name, text, labels=labels)
    for values, histogram in rows:
        running, buckets = 0, []
        for bound, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True):
            running += count
            buckets.append((bound, float(running)))
        if running:
            family.add_metric(values, buckets, sum_value=histogram.total)
    return family


def _counts(metrics: Metrics) -> Iterator[Metric]:
    yield _counter(
        "fastllm_upstream_status",
        "Answers of backends, by attempt; none: no answer came",
        ["backend", "status"],
        metrics.upstream,
    )
    yield _counter(
        "fastllm_failovers", "Attempts that moved on to another backend", ["model"], metrics.failovers
    )
    yield _counter(
        "fastllm_rejections", "Answers of the gateway's own, by error code", ["reason"], metrics.rejections
    )
    yield _counter(
        "fastllm_backend_ejections",
        "Times that a backend was taken out of rotation",
        ["backend", "path", "reason"],
        metrics.ejections,
    )
    cut = CounterMetricFamily("fastllm_streams_cut", "Requests cut because the shutdown grace was over")
    cut.add_metric([], metrics.cut_streams)
    yield cut


def _backends(backends: tuple[Backend, ...]) -> Iterator[Metric]:
    """Live state. `fastllm_backend_engine_requests` comes with scraping, `fastllm_admission_*` with flow control."""
    labels = ["backend", "model"]
    healthy = GaugeMetricFamily("fastllm_backend_healthy", "1 while in rotation", labels=labels)
    inflight = GaugeMetricFamily("fastllm_backend_inflight", "Requests at the backend now", labels=labels)
    for backend in backends:
        healthy.add_metric([backend.id, backend.model.name], 1.0 if backend.healthy else 0.0)
        inflight.add_metric([backend.id, backend.model.name], backend.inflight)
    yield healthy
    yield inflight


def _state(readings: Readings, version: str) -> Iterator[Metric]:
    yield _gauge("fastllm_snapshot_version", "Version being served; 0: none yet", readings.snapshot_version)
    if readings.snapshot_age_seconds is not None:
        yield _gauge(
            "fastllm_snapshot_age_seconds",
            "Since the control plane last confirmed the snapshot as current",
            readings.snapshot_age_seconds,
        )
    yield _counter(
        "fastllm_snapshots_refused",
        "Snapshots that could not be used",
        ["reason"],
        readings.snapshots_refused,
    )
    yield _gauge("fastllm_usage_queued", "Usage events not acknowledged yet", readings.usage_queued)
    yield _gauge("fastllm_usage_spooled_bytes", "Usage on disk", readings.usage_spooled_bytes)
    yield _counter("fastllm_usage_reports_dropped", "Usage events lost", ["reason"], readings.usage_dropped)
    yield _gauge(
        "fastllm_event_loop_lag_seconds", "Worst lateness of the last 10 s", readings.loop_lag_seconds
    )
    yield _counter("fastllm_loop_failures", "Turns that raised, by loop", ["loop"], readings.loop_failures)
    lines = CounterMetricFamily("fastllm_log_lines_dropped", "Log lines that nobody read in time")
    lines.add_metric([], readings.log_lines_dropped)
    yield lines
    build = GaugeMetricFamily("fastllm_build_info", "Always 1", labels=["version", "python"])
    build.add_metric([version, platform.python_version()], 1.0)
    yield build


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)


def _counter(
    name: str,
    text: str,
    labels: list[str],
    counts: dict[str, int] | dict[tuple[str, str], int] | dict[tuple[str, str, str], int],
) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=labels)
    for key, count in counts.items():
        family.add_metric([key] if isinstance(key, str) else list(key), count)
    return family
