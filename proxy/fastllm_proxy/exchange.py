"""One request's facts. Each stage fills its own fields once; nothing else travels between stages.

Times named `…_at` are `time.monotonic()` seconds unless they say Unix.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from fastllm_proxy.backends import Backend
    from fastllm_proxy.downstream import Downstream
    from fastllm_proxy.peek import Peek
    from fastllm_proxy.view import Caller, FrontendModel, View
    from fastllm_shared.usage import Refusal

Dialect = Literal["openai", "anthropic"]


class Endpoint(msgspec.Struct, frozen=True):
    """A proxied path. `path` is canonical and appended to a provider's `api_base` (`/chat/completions`;
    the Anthropic ones are `/messages…`, since an `api_base` ends in `/v1`); `label` is the metrics' and the usage rows' name.
    `splices_usage`: whether a stream of it may be asked for a usage event."""

    path: str
    label: str
    dialect: Dialect = "openai"
    splices_usage: bool = False


class TokenUsage(msgspec.Struct, frozen=True):
    """What an engine reported; `None` is unknown. `cost_micros` is the provider's own figure."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    cost_micros: int | None = None


class Exchange:
    """One request from accept to settlement; created by `accept`, settled exactly once by `meter`."""

    __slots__ = (
        "accepted_at",
        "accepted_unix",
        "attempts",
        "backend",
        "body",
        "caller",
        "downstream",
        "endpoint",
        "first_byte_at",
        "frontend",
        "headers",
        "injected_usage",
        "peek",
        "query",
        "refusal",
        "request_id",
        "rule",
        "status",
        "tag",
        "usage",
        "view",
    )

    def __init__(
        self,
        *,
        view: View,
        endpoint: Endpoint,
        headers: tuple[tuple[bytes, bytes], ...],
        query: str,
        request_id: str,
        downstream: Downstream,
        accepted_at: float,
        accepted_unix: float,
    ) -> None:
        # accept
        self.view = view
        self.endpoint = endpoint
        self.headers = headers  # as the client sent them, order and case kept
        self.query = query  # with its "?", or empty; forwarded, never logged
        self.request_id = request_id
        self.downstream = downstream
        self.accepted_at = accepted_at
        self.accepted_unix = accepted_unix
        # authenticate
        self.caller: Caller | None = None
        # body, peek
        self.body: bytes | bytearray = b""
        self.peek: Peek | None = None
        # authorise
        self.frontend: FrontendModel | None = None
        # routing
        self.rule: int | None = None
        self.tag: str | None = None
        # forward
        self.attempts = 0
        self.backend: Backend | None = None  # of the last attempt
        self.injected_usage = False
        # relay
        self.status = 0  # what the client got; 499 when it went away
        self.first_byte_at: float | None = None
        self.usage: TokenUsage | None = None
        self.refusal: Refusal | None = None
