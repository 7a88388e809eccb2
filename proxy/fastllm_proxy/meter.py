"""Settles a request: its usage, its cost, its event, its counters and its line in the log. Exactly once, and
without ever raising for what an engine sent."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

import msgspec

from fastllm_proxy.access_log import AccessRecord
from fastllm_proxy.exchange import TokenUsage
from fastllm_proxy.figures import read_usage
from fastllm_proxy.metrics import OTHER
from fastllm_shared.ids import IdSource
from fastllm_shared.usage import CostSource, UsageEvent

if TYPE_CHECKING:
    from fastllm_proxy.access_log import AccessLog
    from fastllm_proxy.exchange import Exchange
    from fastllm_proxy.metrics import Metrics
    from fastllm_shared.snapshot import ProviderModelEntry

_UNKNOWN = TokenUsage()

_BROKEN_OFF = (499, 502)
"""The client went, or the backend did: an answer is not whole."""


class EventSink(Protocol):
    """Takes usage events; never blocks, never raises."""

    def put(self, event: UsageEvent) -> None: ...


class Meter:
    __slots__ = ("_access_log", "_ids", "_metrics", "_outbox", "_replica")

    def __init__(self, *, replica: str, outbox: EventSink, metrics: Metrics, access_log: AccessLog) -> None:
        self._replica = replica
        self._ids = IdSource()
        self._outbox = outbox
        self._metrics = metrics
        self._access_log = access_log

    def settle(self, exchange: Exchange) -> None:
        """Call once, when nothing of the exchange goes on. `status` must be what the client got."""
        ended_at = time.monotonic()
        duration = ended_at - exchange.accepted_at
        ttft = _ttft(exchange)
        duration_ms = round(duration * 1000, 3)
        ttft_ms = None if ttft is None else round(ttft * 1000, 3)
        usage = None
        if exchange.mirror is not None:
            usage = read_usage(exchange.mirror, exchange.endpoint.dialect)
            if exchange.status in _BROKEN_OFF and usage is not None:
                usage = _counted_so_far(usage)
            exchange.usage = usage
        if exchange.caller is not None and (exchange.chain is not None or exchange.refusal is not None):
            self._outbox.put(self._event(exchange, usage, duration_ms, ttft_ms))
        frontend = exchange.frontend
        backend = exchange.backend
        slot = self._metrics.slot(
            exchange.endpoint.label,
            OTHER if frontend is None else frontend.name,
            "" if backend is None else backend.id,
        )
        overhead = None if exchange.sent_at is None else exchange.sent_at - exchange.accepted_at
        slot.observe(exchange.status, duration, ttft, overhead, _gap(exchange, usage, ended_at))
        self._log(exchange, usage or _UNKNOWN, duration_ms, ttft_ms)

    def _event(
        self, exchange: Exchange, usage: TokenUsage | None, duration_ms: float, ttft_ms: float | None
    ) -> UsageEvent:
        caller, backend, seen = exchange.caller, exchange.backend, exchange.peek
        assert caller is not None
        found = usage or _UNKNOWN
        cost, source = (None, None) if usage is None or backend is None else cost_of(usage, backend.model)
        return UsageEvent(
            id=self._ids.text(),
            at=exchange.accepted_unix,
            replica=self._replica,
            request_id=exchange.request_id,
            endpoint=exchange.endpoint.label,
            status=exchange.status,
            principal_id=caller.principal.id,
            principal=caller.principal.name,
            key_id=caller.key.id,
            key_prefix=caller.key.prefix,
            model=None if seen is None else seen.model,
            provider_model=None if backend is None else backend.model.name,
            provider_id=None if backend is None else backend.provider.id,
            provider=None if backend is None else backend.provider.name,
            backend_id=None if backend is None else backend.id,
            rule=exchange.rule,
            tag=exchange.tag,
            refusal=exchange.refusal,
            prompt_tokens=found.prompt_tokens,
            completion_tokens=found.completion_tokens,
            cached_tokens=found.cached_tokens,
            reasoning_tokens=found.reasoning_tokens,
            usage_reported=usage is not None,
            cost_micros=cost,
            cost_source=source,
            stream=seen is not None and seen.stream,
            attempts=exchange.attempts,
            ttft_ms=ttft_ms,
            duration_ms=duration_ms,
        )

    def _log(self, exchange: Exchange, usage: TokenUsage, duration_ms: float, ttft_ms: float | None) -> None:
        caller, backend, frontend = exchange.caller, exchange.backend, exchange.frontend
        self._access_log.write(
            AccessRecord(
                at=exchange.accepted_unix,
                id=exchange.request_id,
                endpoint=exchange.endpoint.label,
                status=exchange.status,
                duration_ms=duration_ms,
                ttft_ms=ttft_ms,
                stream=exchange.peek is not None and exchange.peek.stream,
                attempts=exchange.attempts,
                principal=None if caller is None else caller.principal.name,
                key_prefix=None if caller is None else caller.key.prefix,
                model=None if frontend is None else frontend.name,
                provider_model=None if backend is None else backend.model.name,
                backend=None if backend is None else backend.id,
                prompt_tokens=usage.prompt_tokens,
                completion_tokens=usage.completion_tokens,
                code=exchange.code,
            )
        )


def cost_of(usage: TokenUsage, model: ProviderModelEntry) -> tuple[int | None, CostSource | None]:
    """Micro-units and where they come from. The provider's own figure wins; a model without both prices, or
    an answer without both counts, has none."""
    if usage.cost_micros is not None:
        return usage.cost_micros, "provider"
    prompt, completion = usage.prompt_tokens, usage.completion_tokens
    paid_in, paid_out = model.input_price_per_mtok, model.output_price_per_mtok
    if prompt is None or completion is None or paid_in is None or paid_out is None:
        return None, None
    cached = min(usage.cached_tokens or 0, prompt)
    paid_cached = paid_in if model.cached_input_price_per_mtok is None else model.cached_input_price_per_mtok
    millionths = (prompt - cached) * paid_in + cached * paid_cached + completion * paid_out
    return (millionths + 500_000) // 1_000_000, "price"


def _counted_so_far(usage: TokenUsage) -> TokenUsage | None:
    """The figures of an answer that broke off. Engines that count as they go begin with 0: that is not how
    many there were in the end, and is not known."""
    prompt, completion = usage.prompt_tokens or None, usage.completion_tokens or None
    if prompt is None and completion is None:
        return None
    return msgspec.structs.replace(usage, prompt_tokens=prompt, completion_tokens=completion)


def _ttft(exchange: Exchange) -> float | None:
    """Seconds from accept to the first byte of a stream."""
    if exchange.first_byte_at is None or exchange.mirror is None or not exchange.mirror.event_stream:
        return None
    return exchange.first_byte_at - exchange.accepted_at


def _gap(exchange: Exchange, usage: TokenUsage | None, ended_at: float) -> float | None:
    """A stream's mean time between two tokens, seconds."""
    if (
        usage is None
        or not usage.completion_tokens
        or usage.completion_tokens < 2
        or exchange.first_byte_at is None
    ):
        return None
    if exchange.mirror is None or not exchange.mirror.event_stream:
        return None
    return (ended_at - exchange.first_byte_at) / (usage.completion_tokens - 1)
