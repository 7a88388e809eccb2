"""OpenAI's dialect, as the many engines that speak it do: chat, completions, embeddings, responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from fastllm_proxy.dialects.numbers import count, micros, nested
from fastllm_proxy.exchange import TokenUsage


class _Event(msgspec.Struct, frozen=True):
    """What tells an error event from content. Engines differ in the shape of `error`, not in its name."""

    # `Raw | None` would take nothing but null; empty stands for absent.
    error: msgspec.Raw = msgspec.Raw()
    object: msgspec.Raw = msgspec.Raw()
    type: msgspec.Raw = msgspec.Raw()


_ERROR_NAMES: Final = frozenset((b"error", b"response.failed"))

_decode_event = msgspec.json.Decoder(_Event).decode


def usage(figures: Mapping[str, Any]) -> TokenUsage | None:
    """Reads a `usage` object; `None` if it counts nothing."""
    prompt = count(figures, "prompt_tokens", "input_tokens")
    completion = count(figures, "completion_tokens", "output_tokens")
    total = count(figures, "total_tokens")
    if completion is None and prompt is not None and total is not None and total >= prompt:
        completion = total - prompt  # embeddings and rerankers leave it out
    if prompt is None and completion is None:
        if total is None:
            return None
        prompt, completion = total, 0  # what counts only a total generates nothing
    prompt_details = nested(figures, "prompt_tokens_details") or nested(figures, "input_tokens_details")
    completion_details = nested(figures, "completion_tokens_details") or nested(
        figures, "output_tokens_details"
    )
    cached = count(prompt_details, "cached_tokens")
    return TokenUsage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=count(figures, "prompt_cache_hit_tokens") if cached is None else cached,
        reasoning_tokens=count(completion_details, "reasoning_tokens"),
        cost_micros=micros(figures.get("cost")),
    )


def figures_in_meta(meta: object) -> dict[str, Any] | None:
    """Where some rerankers count, who have no `usage`."""
    tokens = meta.get("tokens") if isinstance(meta, dict) else None
    return tokens if isinstance(tokens, dict) else None


def is_error(name: bytes, data: bytes) -> bool:
    """Whether a stream's event (its `event:` name and its data) is an error rather than content."""
    if name in _ERROR_NAMES:
        return True
    try:
        event = _decode_event(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False  # `[DONE]`, or what only the client can judge
    if bytes(event.error) not in (b"", b"null"):
        return True
    return bytes(event.object) == b'"error"' or bytes(event.type)[1:-1] in _ERROR_NAMES


def error_event(message: str, code: str) -> bytes:
    """The event that ends a stream which cannot be completed."""
    body = {"error": {"message": message, "type": "api_error", "param": None, "code": code}}
    return b"data: %b\n\n" % msgspec.json.encode(body)
