"""Anthropic's dialect: `/messages`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from fastllm_proxy.dialects.numbers import count, micros
from fastllm_proxy.dialects.openai import is_error
from fastllm_proxy.exchange import TokenUsage

__all__ = ("error_event", "is_error", "usage")


def usage(figures: Mapping[str, Any]) -> TokenUsage | None:
    """Reads a `usage` object; `None` if it counts nothing.

    `input_tokens` leaves out what came from or went to the cache; here the prompt is all of it, as in the
    other dialect, so that figures of both can be added up.
    """
    plain = count(figures, "input_tokens")
    completion = count(figures, "output_tokens")
    if plain is None and completion is None:
        return None
    cached = count(figures, "cache_read_input_tokens")
    written = count(figures, "cache_creation_input_tokens")
    return TokenUsage(
        prompt_tokens=None if plain is None else plain + (cached or 0) + (written or 0),
        completion_tokens=completion,
        cached_tokens=cached,
        cost_micros=micros(figures.get("cost")),
    )


def error_event(message: str, code: str) -> bytes:  # noqa: ARG001 - this dialect has no codes
    """The event that ends a stream which cannot be completed."""
    body = {"type": "error", "error": {"type": "api_error", "message": message}}
    return b"event: error\ndata: %b\n\n" % msgspec.json.encode(body)
