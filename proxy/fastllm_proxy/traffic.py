"""What the requests themselves say about a backend. Ejection by traffic will live here; empty so far, but for
the latency.

To come: consecutive first-byte timeouts during which the backend delivered nothing to anyone, connect
failures, repeated 5xx to different requests of different callers; 30 s out, doubling to 5 min; then one
trial.
"""

from __future__ import annotations

from typing import Final

from fastllm_proxy.backends import Backend
from fastllm_proxy.errors import UpstreamError

_LATENCY_SHARE: Final = 0.2
"""How much the newest sample counts in the moving average."""


class Traffic:
    __slots__ = ()

    def failed(self, backend: Backend, error: UpstreamError) -> None:
        """An attempt ended without an answer."""

    def answered(self, backend: Backend, status: int) -> None:
        """An attempt got a head."""

    def first_byte(self, backend: Backend, seconds: float, at: float) -> None:
        """A body began so long after its request was sent, at `at` (`time.monotonic()`)."""
        known = backend.recent_latency(at)
        backend.latency_at = at
        backend.latency = seconds if known is None else known + _LATENCY_SHARE * (seconds - known)
