"""One request's facts. Each stage fills its own fields once; nothing else travels between stages.

Times named `…_at` are `time.monotonic()` seconds unless they say Unix.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from fastllm_shared.estimates import (
    conversation_key,
    conversation_start,
    expected_cost,
    expected_generation,
    prompt_tokens,
    requested_tokens,
)
from fastllm_shared.targets import Dialect

if TYPE_CHECKING:
    from fastllm_proxy.backends import Backend
    from fastllm_proxy.client_headers import ClientHeaders
    from fastllm_proxy.downstream import Downstream
    from fastllm_proxy.forms import Form
    from fastllm_proxy.limits import Reservation
    from fastllm_proxy.mirror import Mirror
    from fastllm_proxy.peek import Peek
    from fastllm_proxy.view import Caller, FrontendModel, Target, View
    from fastllm_shared.snapshot import ProviderModelEntry
    from fastllm_shared.usage import Refusal


class Endpoint(msgspec.Struct, frozen=True):
    """A proxied path. `path` is canonical and appended to a provider's `api_base` (`/chat/completions`;
    the Anthropic ones are `/messages…`, since an `api_base` ends in `/v1`); `label` is the metrics' and the
    usage rows' name. `splices_usage`: whether a stream of it may be asked for a usage event; `keeps_state`:
    whether a request may refer to what a backend kept of an earlier one; `takes_forms`: whether its body may
    be a multipart form; `generates`: whether it is answered in tokens."""

    path: str
    label: str
    dialect: Dialect = "openai"
    splices_usage: bool = False
    keeps_state: bool = False
    takes_forms: bool = False
    generates: bool = False


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
        "affinity",
        "attempts",
        "backend",
        "body",
        "caller",
        "chain",
        "code",
        "downstream",
        "endpoint",
        "first_byte_at",
        "form",
        "frontend",
        "headers",
        "injected_usage",
        "mirror",
        "peek",
        "prompt_estimate",
        "query",
        "refusal",
        "release_body",
        "request_id",
        "reservation",
        "rule",
        "sent_at",
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
        headers: ClientHeaders,
        query: str,
        request_id: str,
        downstream: Downstream,
        accepted_at: float,
        accepted_unix: float,
    ) -> None:
        # accept
        self.view = view
        self.endpoint = endpoint
        self.headers = headers
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
        self.form: Form | None = None  # a body that is a multipart form
        self.release_body: Callable[[], None] | None = None
        # authorise
        self.frontend: FrontendModel | None = None
        # limits
        self.reservation: Reservation | None = None
        # routing
        self.rule: int | None = None
        self.tag: str | None = None
        self.chain: tuple[Target, ...] | None = None
        # whoever asks first, see below
        self.affinity: int | None = None
        self.prompt_estimate: int | None = None
        # forward
        self.attempts = 0
        self.backend: Backend | None = None  # of the last attempt
        self.injected_usage = False
        self.sent_at: float | None = None  # when the first attempt left
        # relay
        self.status = 0  # what the client got; 499 when it went away
        self.first_byte_at: float | None = None
        self.mirror: Mirror | None = None  # head and tail of the answer; `None`: there is none to read
        # meter
        self.usage: TokenUsage | None = None
        # pipeline, when the answer is ours
        self.code: str | None = None
        self.refusal: Refusal | None = None

    # What routing asks of a request: found out when it is first asked for, while there is a body.

    @property
    def dialect(self) -> Dialect:
        return self.endpoint.dialect

    def prompt_tokens(self) -> int:
        """An estimate; of a form only what is text in it counts."""
        found = self.prompt_estimate
        if found is None:
            form = self.form
            found = prompt_tokens(self.body) if form is None else form.text_bytes // 4
            self.prompt_estimate = found
        return found

    def requested_tokens(self) -> int | None:
        """How many the client wants generated; `None` if it does not say."""
        assert self.peek is not None
        return requested_tokens(self.peek.members)

    def conversation(self) -> int:
        """The key of the conversation: see `estimates.conversation_key`."""
        key = self.affinity
        if key is None:
            assert self.caller is not None
            seen = self.peek
            assert seen is not None
            if self.form is None:
                start = conversation_start(seen.members, self.body, seen.model_span[1])
            else:
                start = seen.model.encode()  # an upload is no turn of a conversation
            key = self.affinity = conversation_key(self.caller.principal.id, start)
        return key

    def exceeds(self, tokens: int) -> bool:
        """Whether prompt and requested generation together need more than so many tokens."""
        requested = self.requested_tokens() or 0
        if self.form is None and len(self.body) // 4 + requested <= tokens:
            return False  # whatever is embedded in it
        return self.prompt_tokens() + requested > tokens

    def expected_cost(self, model: ProviderModelEntry) -> float | None:
        """See `estimates.expected_cost`."""
        generated = expected_generation(self.requested_tokens(), generates=self.endpoint.generates)
        return expected_cost(model, self.prompt_tokens(), generated)

    def forget_body(self) -> None:
        """Lets the request's body go once no attempt will need it again: a stream may last for minutes, and
        a thousand of them must not hold a thousand prompts."""
        self.body = b""
        if self.form is not None:
            self.form.close()
        if self.peek is not None:
            self.peek = msgspec.structs.replace(self.peek, members={})
        if self.release_body is not None:
            self.release_body()
