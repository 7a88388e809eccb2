"""A request that is only spoken of: what choosing asks, answered from given figures. For the dry run."""

from __future__ import annotations

import msgspec

from fastllm_shared.estimates import (
    conversation_key,
    conversation_start,
    expected_cost,
    expected_generation,
    prompt_tokens,
    requested_tokens,
)
from fastllm_shared.members import scan
from fastllm_shared.snapshot import ProviderModelEntry
from fastllm_shared.targets import Dialect


class Given(msgspec.Struct, frozen=True):
    """`key` is that of its conversation; `max_tokens` what it wants generated, `None` if it does not say;
    `generates`: whether its endpoint answers in tokens. Implements `policies.Asked`."""

    key: int
    prompt_tokens: int = 0
    max_tokens: int | None = None
    dialect: Dialect = "openai"
    generates: bool = True

    def conversation(self) -> int:
        return self.key

    def exceeds(self, tokens: int) -> bool:
        return self.prompt_tokens + (self.max_tokens or 0) > tokens

    def expected_cost(self, model: ProviderModelEntry) -> float | None:
        generated = expected_generation(self.max_tokens, generates=self.generates)
        return expected_cost(model, self.prompt_tokens, generated)


def given(principal_id: str, body: bytes, *, dialect: Dialect = "openai", generates: bool = True) -> Given:
    """What a proxy would find in a JSON body that this principal sends. Raises `ValueError` and
    `RecursionError` as `members.scan` does."""
    spans = scan(body)
    members = {name: msgspec.Raw(body[start:end]) for name, start, end in spans}
    model_end = next((end for name, _, end in reversed(spans) if name == "model"), 0)
    start = conversation_start(members, body, model_end)
    return Given(
        conversation_key(principal_id, start),
        prompt_tokens(body),
        requested_tokens(members),
        dialect,
        generates,
    )
