from __future__ import annotations

import json

import pytest

from fastllm_proxy.dialects.openai import error_event, figures_in_meta, is_error, usage
from fastllm_proxy.exchange import TokenUsage


def test_chat_usage_with_everything() -> None:
    figures = {
        "prompt_tokens": 100,
        "completion_tokens": 50,
        "total_tokens": 150,
        "prompt_tokens_details": {"cached_tokens": 60},
        "completion_tokens_details": {"reasoning_tokens": 20},
        "cost": 0.0021,
    }
    assert usage(figures) == TokenUsage(100, 50, 60, 20, 2100)


def test_details_may_be_null_or_named_otherwise() -> None:
    figures = {
        "prompt_tokens": 9,
        "completion_tokens": 1,
        "prompt_tokens_details": None,
        "completion_tokens_details": "x",
        "prompt_cache_hit_tokens": 4,
    }
    assert usage(figures) == TokenUsage(9, 1, 4, None, None)


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        (b"", b'{"error":{"message":"x"}}', True),
        (b"", b'{"error":"x"}', True),
        (b"", b'{"object":"error","message":"x"}', True),
        (b"", b'{"type":"error"}', True),
        (b"error", b"whatever", True),
        (b"response.failed", b"whatever", True),
        (b"", b'{"type":"response.failed","response":{"status":"failed"}}', True),
        (b"response.created", b'{"type":"response.created","response":{"error":null}}', False),
        (b"", b'{"error":null,"choices":[]}', False),
        (b"", b'{"choices":[{"delta":{"content":"error"}}]}', False),
        (b"", b"[DONE]", False),
        (b"", b'{"error":', False),
        (b"", b'{"x":' + b"[" * 100_000, False),
        (b"", b"\xff", False),
    ],
)
def test_error_events(name: bytes, data: bytes, expected: bool) -> None:
    assert is_error(name, data) is expected


def test_the_event_that_ends_a_broken_stream() -> None:
    event = error_event("it \n broke", "upstream_disconnected")
    assert event.startswith(b"data: ")
    assert event.count(b"\n") == 2
    assert event.endswith(b"\n\n")
    assert json.loads(event[6:]) == {
        "error": {
            "message": "it \n broke",
            "type": "api_error",
            "param": None,
            "code": "upstream_disconnected",
        }
    }


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        ({"type": "duration", "seconds": 9}, None),
        ({"type": "tokens", "input_tokens": 14, "output_tokens": 45, "total_tokens": 59}, TokenUsage(14, 45)),
        (
            {"input_tokens": 50, "input_tokens_details": {"image_tokens": 40}, "output_tokens": 9},
            TokenUsage(50, 9),
        ),
        ({"total_tokens": 31}, TokenUsage(31, 0)),
        ({"search_units": 1}, None),
        (
            {
                "input_tokens": 7,
                "input_tokens_details": {"cached_tokens": 2},
                "output_tokens": 6,
                "output_tokens_details": {"reasoning_tokens": 1},
            },
            TokenUsage(7, 6, 2, 1),
        ),
    ],
)
def test_usage_of_other_endpoints(figures: dict[str, object], expected: TokenUsage | None) -> None:
    assert usage(figures) == expected


@pytest.mark.parametrize(
    ("meta", "figures"),
    [
        ({"tokens": {"input_tokens": 3}}, {"input_tokens": 3}),
        ({"billed_units": {"search_units": 1}}, None),
        ({"tokens": 3}, None),
        ("tokens", None),
        (None, None),
    ],
)
def test_figures_of_rerankers(meta: object, figures: dict[str, object] | None) -> None:
    assert figures_in_meta(meta) == figures
