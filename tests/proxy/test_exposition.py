from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from fastllm_proxy.backends import Backend
from fastllm_proxy.exposition import LINES_AT_ONCE, Exposition, Readings
from fastllm_proxy.metrics import Metrics

EMPTY = Readings(
    snapshot_version=0,
    snapshot_age_seconds=None,
    usage_queued=0,
    usage_spooled_bytes=0,
    usage_dropped={},
    snapshots_refused={},
    log_lines_dropped=0,
    loop_lag_seconds=0.0,
    loop_failures={},
    backends=(),
)

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def scrape(metrics: Metrics, readings: Readings = EMPTY) -> Series:
    """All series as an independent parser reads them."""
    text = await Exposition(metrics, lambda: readings, version="1.2.3", worker="0").render()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def value(series: Series, name: str, **labels: str) -> float:
    return series[name, frozenset({**labels, "worker": "0"}.items())]


def backend(**state: Any) -> Backend:
    facts = {"id": "b1", "model": SimpleNamespace(name="qwen"), "healthy": True, "inflight": 3}
    return cast(Backend, SimpleNamespace(**(facts | state)))


async def test_requests_are_summed_over_backends_and_durations_over_models() -> None:
    metrics = Metrics()
    metrics.slot("/chat/completions", "m", "b1").observe(200, 0.2, ttft_s=0.02)
    metrics.slot("/chat/completions", "m", "b2").observe(200, 2.0)
    metrics.slot("/embeddings", "m", "b2").observe(429, 0.01)
    series = await scrape(metrics)
    assert value(series, "fastllm_requests_total", endpoint="/chat/completions", model="m", status="200") == 2
    assert value(series, "fastllm_requests_total", endpoint="/embeddings", model="m", status="429") == 1
    name = "fastllm_request_duration_seconds"
    where = {"endpoint": "/chat/completions", "model": "m"}
    assert value(series, f"{name}_count", **where) == 2
    assert value(series, f"{name}_sum", **where) == 2.2
    assert value(series, f"{name}_bucket", **where, le="0.25") == 1
    assert value(series, f"{name}_bucket", **where, le="+Inf") == 2
    assert value(series, "fastllm_time_to_first_token_seconds_count", **where) == 1
    assert value(series, "fastllm_backend_duration_seconds_count", backend="b2") == 2


async def test_state_and_counts() -> None:
    metrics = Metrics()
    metrics.attempted("b1", 429)
    metrics.failed_over("m")
    metrics.rejected("invalid_api_key", attributed=False)
    metrics.ejected("b1", "probe", "timeout")
    metrics.cut = 4
    readings = msgspec.structs.replace(
        EMPTY,
        snapshot_version=1_700_000_000_000_000,
        snapshot_age_seconds=1.5,
        usage_queued=7,
        usage_dropped={"queue_full": 2},
        snapshots_refused={"older": 1},
        loop_lag_seconds=0.004,
        loop_failures={"probe": 1},
        backends=(backend(healthy=False),),
    )
    series = await scrape(metrics, readings)
    assert value(series, "fastllm_upstream_status_total", backend="b1", status="429") == 1
    assert value(series, "fastllm_failovers_total", model="m") == 1
    assert value(series, "fastllm_rejections_total", reason="invalid_api_key") == 1
    ejections = "fastllm_backend_ejections_total"
    assert value(series, ejections, backend="b1", path="probe", reason="timeout") == 1
    assert value(series, "fastllm_requests_cut_total") == 4
    assert value(series, "fastllm_backend_healthy", backend="b1", model="qwen") == 0
    assert value(series, "fastllm_backend_inflight", backend="b1", model="qwen") == 3
    assert value(series, "fastllm_snapshot_version") == 1_700_000_000_000_000
    assert value(series, "fastllm_snapshot_age_seconds") == 1.5
    assert value(series, "fastllm_snapshots_refused_total", reason="older") == 1
    assert value(series, "fastllm_usage_queued") == 7
    assert value(series, "fastllm_usage_reports_dropped_total", reason="queue_full") == 2
    assert value(series, "fastllm_usage_spooled_bytes") == 0
    assert value(series, "fastllm_event_loop_lag_seconds") == 0.004
    assert value(series, "fastllm_loop_failures_total", loop="probe") == 1
    assert value(series, "process_open_fds") > 0


async def test_every_series_says_which_worker_and_build() -> None:
    metrics = Metrics()
    metrics.slot("/e", "m", "b").observe(200, 0.1)
    series = await scrape(metrics, msgspec.structs.replace(EMPTY, backends=(backend(),)))
    assert all(("worker", "0") in labels for _, labels in series)
    builds = [dict(labels) for name, labels in series if name == "fastllm_build_info"]
    assert [build["version"] for build in builds] == ["1.2.3"]


async def test_a_name_cannot_break_out_of_its_label() -> None:
    metrics = Metrics()
    name = 'odd "name"\\ with\nlines} 1'
    metrics.slot("/e", name).observe(200, 0.1)
    series = await scrape(metrics)
    assert value(series, "fastllm_requests_total", endpoint="/e", model=name, status="200") == 1


async def test_no_age_before_the_first_snapshot() -> None:
    assert not [name for name, _ in await scrape(Metrics()) if name == "fastllm_snapshot_age_seconds"]


async def test_a_large_scrape_lets_requests_in_between() -> None:
    metrics = Metrics()
    for number in range(LINES_AT_ONCE):
        metrics.slot("/e", f"m{number}").observe(200, 0.1)
    turns = 0

    async def other_work() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other_work())
    series = await scrape(metrics)
    task.cancel()
    assert turns >= len(series) // LINES_AT_ONCE // 2
