"""Usage on its way from a proxy to the control plane.

One event per request that was authorised and given a chain, and one per refusal of an authenticated
caller. Unknown is `None`, never 0. `POST /usage` takes a `UsageBatch` as JSON and answers a `UsageAck`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Refusal = Literal["authorisation", "rate_limit", "budget", "no_backend", "overloaded", "denied"]
CostSource = Literal["provider", "price"]


class UsageEvent(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One request, as it will be stored. On the wire what is absent has its default.

    `id` is a UUIDv7 minted by the proxy: storing it twice changes nothing. `at` is the Unix time in
    seconds at which the request was accepted. `sequence` counts the events of one replica from 1.
    Names are recorded beside ids so that history outlives rows. `model` is the name as asked for.
    `status` is what the client got: 502 after a death mid-stream, 499 when the client went away.
    """

    id: str
    at: float
    replica: str
    request_id: str
    endpoint: str
    status: int
    sequence: int = 0
    principal_id: str | None = None
    principal: str | None = None
    key_id: str | None = None
    key_prefix: str | None = None
    model: str | None = None
    provider_model: str | None = None
    provider_id: str | None = None
    provider: str | None = None
    backend_id: str | None = None
    rule: int | None = None
    tag: str | None = None
    refusal: Refusal | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    usage_reported: bool = False
    cost_micros: int | None = None
    cost_source: CostSource | None = None
    stream: bool = False
    attempts: int = 0
    ttft_ms: float | None = None
    duration_ms: float = 0.0


class UsageBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one `POST /usage` carries: at most 500 events of one replica."""

    replica: str
    events: tuple[UsageEvent, ...]


class UsageAck(msgspec.Struct, frozen=True):
    """How many events of the batch are new to the database, and how many it held already."""

    stored: int
    duplicates: int


MAX_BATCH_EVENTS = 500
encode_batch = msgspec.json.Encoder().encode
decode_batch = msgspec.json.Decoder(UsageBatch).decode
decode_ack = msgspec.json.Decoder(UsageAck).decode
