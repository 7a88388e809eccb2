"""The live object behind one backend: one pool, one in-flight count, one health state, however many
routes lead to it. It outlives snapshots while its identity (address, credential, upstream name, TLS) is the
same.

State and who changes it:
    inflight            `InFlight` guards, taken by `forward`
    ejection            `health` (probes); traffic ejection comes later
    cooling_until       `forward` (429, 503 with Retry-After, credential rejections)
    answer_headers      `delivery` (those of the last answer)
    latency, latency_at `traffic` (EWMA of time to first byte, seconds; when it had its last sample)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fastllm_shared.hashing import seed_of
from fastllm_shared.health import Ejection
from fastllm_shared.snapshot import BackendEntry, ProviderEntry, ProviderModelEntry

if TYPE_CHECKING:
    from fastllm_proxy.answer_headers import AnswerHeaders
    from fastllm_proxy.upstream import UpstreamPool


LATENCY_KEPT_SECONDS: Final = 60.0
"""After the last sample."""


class Backend:
    __slots__ = (
        "answer_headers",
        "base_path",
        "cooling_until",
        "credential_header",
        "ejection",
        "entry",
        "id",
        "inflight",
        "latency",
        "latency_at",
        "model",
        "own_headers",
        "pool",
        "provider",
        "request_lines",
        "seed",
    )

    def __init__(
        self,
        entry: BackendEntry,
        provider: ProviderEntry,
        model: ProviderModelEntry,
        pool: UpstreamPool,
        base_path: str,
        credential_header: bytes,
    ) -> None:
        self.id = entry.id
        self.entry = entry
        self.provider = provider
        self.model = model
        self.pool = pool
        self.base_path = base_path  # the path of `api_base`, without a trailing slash
        # Host, credential and extra headers as wire bytes, each line with its CRLF: what every request to it
        # starts with.
        self.credential_header = credential_header
        # Lower-cased names that `credential_header` sets: a client's headers of these names do not pass.
        self.own_headers = frozenset(
            name.lower().encode()
            for name in (provider.auth_header, *(name for name, _ in provider.extra_headers))
        )
        # Request line and `credential_header` by endpoint path, filled by `wire` when first needed.
        self.request_lines: dict[str, bytes] = {}
        # What rendezvous hashing knows this backend by: the same number on every replica.
        self.seed = seed_of(entry.id)
        self.answer_headers: AnswerHeaders | None = None
        self.inflight = 0
        self.ejection: Ejection | None = None
        self.cooling_until = 0.0  # time.monotonic()
        self.latency = 0.0
        self.latency_at = -LATENCY_KEPT_SECONDS  # time.monotonic()

    @property
    def healthy(self) -> bool:
        return self.ejection is None

    def is_in_rotation(self, now: float) -> bool:
        """Whether it is neither ejected nor cooling; `now` is `time.monotonic()`."""
        return self.ejection is None and self.cooling_until <= now

    def recent_latency(self, now: float) -> float | None:
        """`latency` while it is worth something. Whoever was slow once gets no requests and so no samples
        that could say that it is not any more."""
        return self.latency if now - self.latency_at < LATENCY_KEPT_SECONDS else None


class InFlight:
    """Counts one request on one backend from construction to `release`, which may be called any number
    of times."""

    __slots__ = ("_backend",)

    def __init__(self, backend: Backend) -> None:
        self._backend: Backend | None = backend
        backend.inflight += 1

    def release(self) -> None:
        backend, self._backend = self._backend, None
        if backend is not None:
            backend.inflight -= 1
