from __future__ import annotations

import json

from fastllm_proxy.dialects.anthropic import error_event, is_error, usage
from fastllm_proxy.exchange import TokenUsage


def test_the_prompt_is_all_of_it() -> None:
    figures = {
        "input_tokens": 10,
        "cache_creation_input_tokens": 3,
        "cache_read_input_tokens": 5,
        "output_tokens": 7,
    }
    assert usage(figures) == TokenUsage(18, 7, 5, None, None)
    assert usage({"input_tokens": 10, "cache_read_input_tokens": None}) == TokenUsage(
        10, None, None, None, None
    )
    assert usage({}) is None


def test_error_events() -> None:
    assert is_error(b"error", b"{}")
    assert is_error(b"", b'{"type":"error","error":{"type":"overloaded_error"}}')
    assert not is_error(b"message_start", b'{"type":"message_start"}')


def test_the_event_that_ends_a_broken_stream() -> None:
    name, data, *rest = error_event("it broke", "upstream_disconnected").split(b"\n")
    assert name == b"event: error"
    assert json.loads(data[6:]) == {"type": "error", "error": {"type": "api_error", "message": "it broke"}}
    assert rest == [b"", b""]
