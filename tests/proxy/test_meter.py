"""What is settled: events, costs, counters, the line in the log."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastllm_proxy.access_log import AccessLog, AccessRecord
from fastllm_proxy.exchange import Exchange, TokenUsage
from fastllm_proxy.meter import Meter, cost_of
from fastllm_proxy.metrics import OTHER, Metrics
from fastllm_proxy.mirror import Mirror
from fastllm_shared.snapshot import ProviderModelEntry
from fastllm_shared.usage import UsageEvent
from tests.proxy.parts import exchange, live_backend, target
from tests.proxy.rig import Events


class Lines(AccessLog):
    """Keeps the records."""

    __slots__ = ("records",)

    def __init__(self) -> None:
        self.records: list[AccessRecord] = []

    def write(self, record: AccessRecord) -> None:
        self.records.append(record)


def settled(made: Exchange) -> tuple[UsageEvent | None, Metrics, AccessRecord]:
    events, metrics, lines = Events(), Metrics(), Lines()
    Meter(replica="r1", outbox=events, metrics=metrics, access_log=lines).settle(made)
    assert len(events.all) <= 1
    return (events.all[0] if events.all else None), metrics, lines.records[0]


def served(text: bytes, *, stream: bool = False, **changes: Any) -> Exchange:
    """An exchange that got an answer from a backend."""
    made = exchange(target("t", live_backend(1)), **changes)
    now = time.monotonic()
    made.accepted_at, made.accepted_unix = now - 2.0, 1_700_000_000.0
    made.sent_at, made.first_byte_at = now - 1.999, now - 1.5
    made.backend = live_backend(1)
    made.attempts, made.status = 1, 200
    made.mirror = Mirror(event_stream=stream)
    made.mirror.add(text)
    return made


USAGE = b'{"usage":{"prompt_tokens":4,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":1}}}'


@pytest.mark.parametrize(
    ("counts", "known"),
    [((7, 0), (7, None)), ((0, 0), (None, None)), ((7, 3), (7, 3)), ((0, 3), (None, 3))],
)
@pytest.mark.parametrize("status", [499, 502])
def test_of_an_answer_that_broke_off_zero_is_not_known(
    counts: tuple[int, int], known: tuple[int | None, int | None], status: int
) -> None:
    text = b'data: {"usage":{"prompt_tokens":%d,"completion_tokens":%d}}\n\n' % counts
    made = served(text, stream=True)
    made.status = status
    event, _, line = settled(made)
    assert event is not None
    assert (event.prompt_tokens, event.completion_tokens) == known
    assert (line.prompt_tokens, line.completion_tokens) == known
    assert event.usage_reported is (known != (None, None))
    whole, _, _ = settled(served(text, stream=True))
    assert whole is not None
    assert (whole.prompt_tokens, whole.completion_tokens) == counts


def test_an_answer_becomes_one_event() -> None:
    event, metrics, line = settled(served(USAGE))
    assert event is not None
    assert event.id[14] == "7"
    assert (event.replica, event.request_id, event.endpoint, event.status) == (
        "r1",
        "request-1",
        "/chat/completions",
        200,
    )
    assert (event.principal_id, event.principal) == ("principal-1", "team-a")
    assert (event.key_id, event.key_prefix) == ("key-1", "sk-test")
    assert (event.model, event.provider_model) == ("assistant", "qwen")
    assert (event.provider_id, event.provider, event.backend_id) == ("provider-1", "engine-1", "backend-1")
    assert (event.prompt_tokens, event.completion_tokens, event.cached_tokens) == (4, 2, 1)
    assert event.usage_reported
    assert (event.ttft_ms, event.attempts, event.at) == (None, 1, 1_700_000_000.0)
    assert 1900 < event.duration_ms < 3000
    slot = metrics.slot("/chat/completions", "assistant", "backend-1")
    assert slot.statuses == {200: 1}
    assert sum(slot.overheads.counts) == 1
    assert sum(slot.ttfts.counts) == 0
    assert (line.model, line.backend, line.prompt_tokens, line.status) == ("assistant", "backend-1", 4, 200)


def test_a_stream_has_a_time_to_its_first_byte_and_a_gap() -> None:
    event, metrics, line = settled(served(b"data: " + USAGE + b"\n\n", stream=True))
    assert event is not None
    assert event.ttft_ms is not None
    assert 450 < event.ttft_ms < 1500
    assert line.ttft_ms == event.ttft_ms
    slot = metrics.slot("/chat/completions", "assistant", "backend-1")
    assert sum(slot.ttfts.counts) == sum(slot.gaps.counts) == 1


def test_unknown_is_null_and_never_zero() -> None:
    event, _, _ = settled(served(b"{}"))
    assert event is not None
    assert (event.prompt_tokens, event.completion_tokens, event.cost_micros, event.cost_source) == (None,) * 4
    assert not event.usage_reported


def test_a_client_that_went_while_it_waited() -> None:
    made = exchange(target("t", live_backend(1)))
    made.status = 499
    event, _, _ = settled(made)
    assert event is not None
    assert (event.status, event.attempts, event.backend_id, event.prompt_tokens) == (499, 0, None, None)


def test_what_leaves_no_row() -> None:
    """A stranger, and a caller whose request was never given a chain nor refused for one of the rowed
    reasons."""
    stranger = exchange()
    stranger.caller, stranger.chain, stranger.frontend, stranger.status = None, None, None, 401
    event, metrics, line = settled(stranger)
    assert event is None
    assert metrics.slot("/chat/completions", OTHER).statuses == {401: 1}
    assert (line.principal, line.model) == (None, None)
    careless = exchange()
    careless.chain, careless.frontend, careless.status = None, None, 404
    event, _, line = settled(careless)
    assert event is None
    assert (line.principal, line.model) == ("team-a", None)


def test_a_refusal_of_a_known_caller_leaves_one() -> None:
    made = exchange()
    made.chain, made.frontend, made.status, made.refusal, made.code = (
        None,
        None,
        403,
        "authorisation",
        "model_access_denied",
    )
    event, _, line = settled(made)
    assert event is not None
    assert (event.refusal, event.status, event.model, line.code) == (
        "authorisation",
        403,
        "assistant",
        "model_access_denied",
    )


PRICED = ProviderModelEntry("m", "m", input_price_per_mtok=500_000, output_price_per_mtok=1_500_000)


@pytest.mark.parametrize(
    ("usage", "model", "expected"),
    [
        (TokenUsage(1000, 1000), PRICED, (2000, "price")),
        (TokenUsage(1, 0), PRICED, (1, "price")),
        (TokenUsage(0, 0), PRICED, (0, "price")),
        (TokenUsage(1000, 0, cached_tokens=400), PRICED, (500, "price")),
        (TokenUsage(1000, None), PRICED, (None, None)),
        (TokenUsage(None, 5), PRICED, (None, None)),
        (TokenUsage(10, 10), ProviderModelEntry("m", "m", input_price_per_mtok=1), (None, None)),
        (TokenUsage(10, 10), ProviderModelEntry("m", "m"), (None, None)),
        (TokenUsage(10, 10, cost_micros=77), PRICED, (77, "provider")),
        (TokenUsage(None, None, cost_micros=0), ProviderModelEntry("m", "m"), (0, "provider")),
    ],
)
def test_costs(usage: TokenUsage, model: ProviderModelEntry, expected: tuple[int | None, str | None]) -> None:
    assert cost_of(usage, model) == expected


def test_cached_tokens_at_their_own_price_and_never_more_than_the_prompt() -> None:
    model = ProviderModelEntry(
        "m", "m", input_price_per_mtok=500_000, output_price_per_mtok=0, cached_input_price_per_mtok=50_000
    )
    assert cost_of(TokenUsage(1000, 0, cached_tokens=400), model) == (320, "price")
    assert cost_of(TokenUsage(1000, 0, cached_tokens=9999), model) == (50, "price")


@given(st.integers(0, 10**7), st.integers(0, 10**7), st.integers(0, 10**8), st.integers(0, 10**8))
def test_rounding_is_half_up_once(prompt: int, completion: int, paid_in: int, paid_out: int) -> None:
    model = ProviderModelEntry("m", "m", input_price_per_mtok=paid_in, output_price_per_mtok=paid_out)
    cost, _ = cost_of(TokenUsage(prompt, completion), model)
    assert cost is not None
    exact = prompt * paid_in + completion * paid_out
    assert -500_000 < cost * 1_000_000 - exact <= 500_000
