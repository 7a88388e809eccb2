from __future__ import annotations

from fastllm_proxy.errors import ConnectionReset
from fastllm_proxy.traffic import Traffic
from tests.proxy.parts import live_backend


def test_latency_follows_what_is_measured() -> None:
    backend = live_backend(1)
    traffic = Traffic()
    traffic.first_byte(backend, 1.0)
    assert backend.latency == 1.0
    traffic.first_byte(backend, 2.0)
    assert backend.latency is not None
    assert 1.0 < backend.latency < 1.5
    for _ in range(50):
        traffic.first_byte(backend, 2.0)
    assert round(backend.latency, 2) == 2.0


def test_nothing_ejects_yet() -> None:
    backend = live_backend(1)
    for _ in range(100):
        Traffic().failed(backend, ConnectionReset("gone"))
        Traffic().answered(backend, 500)
    assert backend.healthy
