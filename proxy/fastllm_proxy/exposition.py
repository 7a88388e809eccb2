"""Counters as Prometheus series (text format 0.0.4), written when `/metrics` is asked for.

Written here line by line, and a piece at a time: through the client library a scrape of 100 models held up
every stream for a quarter of a second (9 µs a line; here 1.5 µs, and under a millisecond at once). What the
library knows about the process is taken from it.

Every series carries `worker`. Backends are known by their id and provider model: provider names and addresses
are not for everybody who can reach the port.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter

import msgspec
from prometheus_client import ProcessCollector

from fastllm_proxy.backends import Backend
from fastllm_proxy.metrics import NO_BACKEND, REQUEST_BOUNDS, Histogram, Metrics, Slot

LINES_AT_ONCE = 250

Lines = Iterator[str]


class Readings(msgspec.Struct, frozen=True):
    """What is read when scraped. `snapshot_age_seconds` is `None` before the first snapshot."""

    snapshot_version: int
    snapshot_age_seconds: float | None
    usage_queued: int
    usage_spooled_bytes: int
    usage_dropped: Mapping[str, int]
    snapshots_refused: Mapping[str, int]
    log_lines_dropped: int
    loop_lag_seconds: float
    loop_failures: Mapping[str, int]
    backends: tuple[Backend, ...]


class Exposition:
    """Renders everything; `read` gives what is not counted in `metrics`."""

    def __init__(
        self, metrics: Metrics, read: Callable[[], Readings], *, version: str, worker: str = "0"
    ) -> None:
        self._metrics = metrics
        self._read = read
        self._version = version
        self._worker = f'worker="{worker}"'
        self._process = ProcessCollector(registry=None)

    async def render(self) -> bytes:
        """The whole text. Gives way to requests between pieces, so figures may be some milliseconds apart."""
        pieces: list[str] = []
        for line in self._lines():
            pieces.append(line)
            if len(pieces) % LINES_AT_ONCE == 0:
                await asyncio.sleep(0)
        return "".join(pieces).encode()

    def _lines(self) -> Lines:
        readings = self._read()
        yield from self._requests()
        yield from self._counts()
        yield from self._backends(readings.backends)
        yield from self._state(readings)
        yield from self._process_lines()

    def _requests(self) -> Lines:
        merged: dict[tuple[str, str], Slot] = {}
        by_backend: dict[str, Histogram] = {}
        for (endpoint, model, backend_id), slot in list(self._metrics.slots.items()):
            merged.setdefault((endpoint, model), Slot()).add(slot)
            if backend_id != NO_BACKEND:
                by_backend.setdefault(backend_id, Histogram(REQUEST_BOUNDS)).add(slot.durations)
            yield ""  # a turn for requests here too: adding up many slots takes its time
        yield _head("fastllm_requests_total", "counter", "Requests by what the client got")
        for (endpoint, model), slot in merged.items():
            labels = _labels(endpoint=endpoint, model=model)
            for status, count in slot.statuses.items():
                yield f'fastllm_requests_total{{{labels},status="{status}",{self._worker}}} {count}\n'
        for name, text, pick in SLOT_HISTOGRAMS:
            yield _head(name, "histogram", text)
            for (endpoint, model), slot in merged.items():
                yield from self._histogram(name, _labels(endpoint=endpoint, model=model), pick(slot))
        name = "fastllm_backend_duration_seconds"
        yield _head(name, "histogram", "Requests by the backend that served them")
        for backend_id, histogram in by_backend.items():
            yield from self._histogram(name, _labels(backend=backend_id), histogram)

    def _histogram(self, name: str, labels: str, histogram: Histogram) -> Lines:
        running = 0
        labels = f"{labels},{self._worker}"
        for bound, count in zip((*histogram.bounds, "+Inf"), histogram.counts, strict=True):
            running += count
            yield f'{name}_bucket{{{labels},le="{bound}"}} {running}\n'
        yield f"{name}_count{{{labels}}} {running}\n{name}_sum{{{labels}}} {histogram.total!r}\n"

    def _counts(self) -> Lines:
        metrics = self._metrics
        yield from self._counter(
            "fastllm_upstream_status_total",
            "Answers of backends by attempt; none: no answer came",
            [(_labels(backend=key[0], status=key[1]), n) for key, n in metrics.upstream.items()],
        )
        yield from self._counter(
            "fastllm_failovers_total",
            "Attempts that moved on to another backend",
            _labelled("model", metrics.failovers),
        )
        yield from self._counter(
            "fastllm_rejections_total",
            "Answers of the gateway's own, by error code",
            _labelled("reason", metrics.rejections),
        )
        yield from self._counter(
            "fastllm_backend_ejections_total",
            "Times that a backend was taken out of rotation",
            [(_labels(backend=k[0], path=k[1], reason=k[2]), n) for k, n in metrics.ejections.items()],
        )
        yield from self._counter(
            "fastllm_requests_cut_total",
            "Requests cut because the shutdown grace was over",
            [("", metrics.cut)],
        )

    def _backends(self, backends: tuple[Backend, ...]) -> Lines:
        """`fastllm_backend_engine_requests` comes with scraping, `fastllm_admission_*` with flow control."""
        rows = [(_labels(backend=backend.id, model=backend.model.name), backend) for backend in backends]
        healthy = [(labels, int(backend.healthy)) for labels, backend in rows]
        yield from self._gauge("fastllm_backend_healthy", "1 while in rotation", healthy)
        inflight = [(labels, backend.inflight) for labels, backend in rows]
        yield from self._gauge("fastllm_backend_inflight", "Requests at the backend now", inflight)

    def _state(self, readings: Readings) -> Lines:
        yield from self._gauge(
            "fastllm_snapshot_version", "Version being served; 0: none yet", [("", readings.snapshot_version)]
        )
        age = readings.snapshot_age_seconds
        yield from self._gauge(
            "fastllm_snapshot_age_seconds",
            "Since the control plane last confirmed the snapshot as current",
            [] if age is None else [("", age)],
        )
        yield from self._counter(
            "fastllm_snapshots_refused_total",
            "Snapshots that could not be used",
            _labelled("reason", readings.snapshots_refused),
        )
        yield from self._gauge(
            "fastllm_usage_queued", "Usage events not acknowledged yet", [("", readings.usage_queued)]
        )
        yield from self._gauge(
            "fastllm_usage_spooled_bytes", "Usage on disk", [("", readings.usage_spooled_bytes)]
        )
        yield from self._counter(
            "fastllm_usage_reports_dropped_total",
            "Usage events lost",
            _labelled("reason", readings.usage_dropped),
        )
        yield from self._gauge(
            "fastllm_event_loop_lag_seconds",
            "Worst lateness of the last 10 s",
            [("", readings.loop_lag_seconds)],
        )
        yield from self._counter(
            "fastllm_loop_failures_total", "Turns that raised", _labelled("loop", readings.loop_failures)
        )
        yield from self._counter(
            "fastllm_log_lines_dropped_total",
            "Log lines that nobody read in time",
            [("", readings.log_lines_dropped)],
        )
        build = _labels(version=self._version, python=platform.python_version())
        yield from self._gauge("fastllm_build_info", "Always 1", [(build, 1)])

    def _process_lines(self) -> Lines:
        for family in self._process.collect():
            rows = [("", sample.value) for sample in family.samples]
            kind = "counter" if family.type == "counter" else "gauge"
            yield from self._family(family.samples[0].name, kind, family.documentation, rows)

    def _counter(self, name: str, text: str, rows: Iterable[tuple[str, float]]) -> Lines:
        yield from self._family(name, "counter", text, rows)

    def _gauge(self, name: str, text: str, rows: Iterable[tuple[str, float]]) -> Lines:
        yield from self._family(name, "gauge", text, rows)

    def _family(self, name: str, kind: str, text: str, rows: Iterable[tuple[str, float]]) -> Lines:
        yield _head(name, kind, text)
        for labels, value in rows:
            yield f"{name}{{{labels}{',' if labels else ''}{self._worker}}} {value!r}\n"


SLOT_HISTOGRAMS: tuple[tuple[str, str, Callable[[Slot], Histogram]], ...] = (
    ("fastllm_request_duration_seconds", "From accept to the last byte", attrgetter("durations")),
    ("fastllm_time_to_first_token_seconds", "From accept to a stream's first byte", attrgetter("ttfts")),
    ("fastllm_inter_token_seconds", "Mean time between a stream's tokens", attrgetter("gaps")),
    ("fastllm_overhead_seconds", "From accept to leaving for a backend", attrgetter("overheads")),
)


def _head(name: str, kind: str, text: str) -> str:
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def _labelled(label: str, counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return [(_labels(**{label: value}), count) for value, count in counts.items()]


def _labels(**labels: str) -> str:
    return ",".join([f'{name}="{_escaped(value)}"' for name, value in labels.items()])


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
