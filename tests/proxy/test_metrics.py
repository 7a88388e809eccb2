from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fastllm_proxy import metrics as under_test
from fastllm_proxy.metrics import GAP_BOUNDS, MAX_SLOTS, OTHER, Histogram, Metrics


@given(st.lists(st.floats(min_value=0, max_value=5, allow_nan=False)))
def test_each_observation_lands_in_the_first_bucket_that_holds_it(values: list[float]) -> None:
    histogram = Histogram(GAP_BOUNDS)
    for value in values:
        histogram.observe(value)
    running = 0
    for bound, count in zip((*GAP_BOUNDS, float("inf")), histogram.counts, strict=True):
        running += count
        assert running == sum(value <= bound for value in values)
    assert abs(histogram.total - sum(values)) < 1e-6


def test_the_same_three_names_give_the_same_slot() -> None:
    metrics = Metrics()
    slot = metrics.slot("/chat/completions", "m", "b")
    slot.observe(200, 0.5, ttft_s=0.1, overhead_s=0.001, inter_token_s=0.02)
    slot.observe(200, 0.5)
    slot.observe(502, 0.5)
    assert metrics.slot("/chat/completions", "m", "b") is slot
    assert slot.statuses == {200: 2, 502: 1}
    assert sum(slot.durations.counts) == 3
    assert sum(slot.ttfts.counts) == sum(slot.gaps.counts) == sum(slot.overheads.counts) == 1


def test_a_backend_that_goes_takes_no_request_with_it() -> None:
    metrics = Metrics()
    for backend in ("gone", "stays"):
        metrics.slot("/e", "m", backend).observe(200, 1.0, ttft_s=0.2)
        metrics.attempted(backend, 200)
        metrics.ejected(backend, "probe", "timeout")
    metrics.retain(frozenset(("stays",)))
    assert set(metrics.slots) == {("/e", "m", "stays"), ("/e", "m", "")}
    assert metrics.slot("/e", "m").statuses == {200: 1}
    assert sum(metrics.slot("/e", "m").ttfts.counts) == 1
    assert set(metrics.upstream) == {("stays", "2xx")}
    assert set(metrics.ejections) == {("stays", "probe", "timeout")}


def test_statuses_of_backends_are_classes_with_429_apart() -> None:
    metrics = Metrics()
    for status in (200, 204, 404, 429, 503, None, 999):
        metrics.attempted("b", status)
    assert metrics.upstream == {
        ("b", "2xx"): 2,
        ("b", "4xx"): 1,
        ("b", "429"): 1,
        ("b", "5xx"): 1,
        ("b", "none"): 2,
    }


def test_strangers_are_counted_apart() -> None:
    metrics = Metrics()
    metrics.rejected("invalid_api_key", attributed=False)
    metrics.rejected("model_not_found", attributed=True)
    assert metrics.rejections == {"invalid_api_key": 1, "model_not_found": 1}
    assert metrics.unattributed == {"invalid_api_key": 1}


def test_slots_are_bounded() -> None:
    metrics = Metrics()
    for number in range(MAX_SLOTS):
        metrics.slot("/e", f"m{number}")
    assert metrics.slot("/e", "one more") is metrics.slot("/e", "and another")
    assert metrics.slot("/e", "one more") is metrics.slot("/e", OTHER)
    assert len(metrics.slots) == MAX_SLOTS + 1


def test_nothing_on_the_hot_path_locks_or_imports_a_client_library() -> None:
    assert not {"threading", "prometheus_client", "asyncio"} & set(vars(under_test))
