from __future__ import annotations

from fastllm_proxy.backends import LATENCY_KEPT_SECONDS
from fastllm_proxy.errors import ConnectionReset
from fastllm_proxy.traffic import Traffic
from tests.proxy.parts import live_backend


def test_latency_follows_what_is_measured() -> None:
    backend = live_backend(1)
    traffic = Traffic()
    assert backend.recent_latency(100.0) is None
    traffic.first_byte(backend, 1.0, 100.0)
    assert backend.recent_latency(100.0) == 1.0
    traffic.first_byte(backend, 2.0, 101.0)
    assert 1.0 < backend.latency < 1.5
    for _ in range(50):
        traffic.first_byte(backend, 2.0, 101.0)
    assert round(backend.latency, 2) == 2.0


def test_an_old_sample_counts_for_nothing() -> None:
    """Whoever was slow once would never be asked again."""
    backend = live_backend(1)
    traffic = Traffic()
    traffic.first_byte(backend, 9.0, 100.0)
    later = 100.0 + LATENCY_KEPT_SECONDS
    assert backend.recent_latency(later - 1) == 9.0
    assert backend.recent_latency(later) is None
    traffic.first_byte(backend, 0.1, later)
    assert backend.recent_latency(later) == 0.1


def test_nothing_ejects_yet() -> None:
    backend = live_backend(1)
    for _ in range(100):
        Traffic().failed(backend, ConnectionReset("gone"))
        Traffic().answered(backend, 500)
    assert backend.healthy
