from __future__ import annotations

from fastllm_proxy.gate import Gates
from tests.proxy.parts import exchange, live_backend


async def test_every_gate_is_open() -> None:
    gates, backend = Gates(), live_backend(1)
    for _ in range(1000):
        assert gates.has_room(backend)
        await gates.enter(backend, exchange())
    for _ in range(1000):
        gates.leave(backend)
