"""Usage is found wherever it stands, and nothing an engine sends makes the search fail."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastllm_proxy.exchange import TokenUsage
from fastllm_proxy.figures import read_usage
from fastllm_proxy.mirror import Mirror
from fastllm_shared.targets import Dialect

USAGE = {"prompt_tokens": 11, "completion_tokens": 5, "total_tokens": 16}


def read(
    text: bytes, *, stream: bool = False, dialect: Dialect = "openai", pieces: int = 4096
) -> TokenUsage | None:
    mirror = Mirror(event_stream=stream)
    for at in range(0, len(text), pieces):
        mirror.add(text[at : at + pieces])
    return read_usage(mirror, dialect)


def events(*data: Any, end: str = "\n") -> bytes:
    return "".join(f"data: {x if isinstance(x, str) else json.dumps(x)}{end}{end}" for x in data).encode()


def counts(usage: TokenUsage | None) -> tuple[int | None, int | None] | None:
    return None if usage is None else (usage.prompt_tokens, usage.completion_tokens)


@pytest.mark.parametrize("size", [10, 22_000, 2_000_000])
@pytest.mark.parametrize("first", [True, False])
def test_a_body_of_any_size(size: int, first: bool) -> None:
    filler = {"data": [{"embedding": "A" * size}]}
    body = {"usage": USAGE, **filler} if first else {**filler, "usage": USAGE, "model": "m"}
    for separators in ((",", ":"), (", ", ": ")):
        assert counts(read(json.dumps(body, separators=separators).encode())) == (11, 5)


def test_the_top_level_counts_not_what_a_body_quotes() -> None:
    quoted = {"choices": [{"message": {"content": json.dumps({"usage": {"prompt_tokens": 999}})}}]}
    assert counts(
        read(json.dumps({**quoted, "usage": USAGE, "x": {"usage": {"prompt_tokens": 1}}}).encode())
    ) == (11, 5)
    assert read(json.dumps(quoted).encode()) is None
    assert read(events(quoted, "[DONE]"), stream=True) is None


def test_content_that_speaks_of_usage_is_not_read_as_usage() -> None:
    trap = {"choices": [{"delta": {"content": '"usage":{"prompt_tokens":1,"completion_tokens":1}'}}]}
    assert read(events(trap, "[DONE]"), stream=True) is None
    assert read(b"x" * 40_000 + events(trap, "[DONE]"), stream=True) is None


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_last_event_of_a_stream_that_has_some(end: str) -> None:
    chunk = {"choices": [{"delta": {"content": "x"}}], "usage": None}
    early = {"choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 1}}
    text = events(early, *[chunk] * 2000, {"choices": [], "usage": USAGE}, chunk, "[DONE]", end=end)
    assert counts(read(text, stream=True)) == (11, 5)


def test_a_stream_that_died_keeps_what_was_counted_so_far() -> None:
    running = {"choices": [{}], "usage": {"prompt_tokens": 11, "completion_tokens": 3}}
    assert counts(read(events(running) + b'data: {"choices":[{}],"usage":{"prompt_to', stream=True)) == (
        11,
        3,
    )


def test_responses_events() -> None:
    done = {
        "type": "response.completed",
        "response": {
            "output": [{"text": "y" * 30_000}],
            "usage": {
                "input_tokens": 11,
                "input_tokens_details": {"cached_tokens": 4},
                "output_tokens": 5,
                "output_tokens_details": {"reasoning_tokens": 2},
            },
            "metadata": {},
        },
    }
    usage = read(b"event: response.completed\n" + events(done), stream=True)
    assert usage == TokenUsage(11, 5, 4, 2, None)


def test_anthropic_prompt_from_the_first_event_and_the_rest_from_the_last() -> None:
    start = {
        "type": "message_start",
        "message": {"usage": {"input_tokens": 10, "cache_read_input_tokens": 5, "output_tokens": 1}},
    }
    middle = [{"type": "content_block_delta", "delta": {"text": "z" * 100}}] * 1000
    stop = {"type": "message_delta", "usage": {"output_tokens": 42, "input_tokens": None}}
    for many in (0, 1000):
        text = events(start, *middle[:many], stop)
        usage = read(text, stream=True, dialect="anthropic")
        assert usage == TokenUsage(15, 42, 5, None, None)
    assert counts(read(events(start), stream=True, dialect="anthropic")) == (15, 1)
    whole = json.dumps({"usage": {"input_tokens": 3, "output_tokens": 4}}).encode()
    assert counts(read(whole, dialect="anthropic")) == (3, 4)


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 3.0, "completion_tokens": 2.0}, (3, 2)),
        ({"prompt_tokens": 3, "total_tokens": 3}, (3, 0)),
        ({"total_tokens": 8}, (8, 0)),
        ({"prompt_tokens": 3, "completion_tokens": None}, (3, None)),
        ({"prompt_tokens": "3", "completion_tokens": 2}, (None, 2)),
        ({"prompt_tokens": -3}, None),
        ({"prompt_tokens": True}, None),
        ({"prompt_tokens": 10**30}, None),
        ({}, None),
        (None, None),
        ([], None),
        ("x", None),
    ],
)
def test_odd_figures(usage: object, expected: tuple[int | None, int | None] | None) -> None:
    assert counts(read(json.dumps({"choices": [], "usage": usage}).encode())) == expected
    assert counts(read(events({"choices": [], "usage": usage}), stream=True)) == expected


@given(st.binary(max_size=300), st.sampled_from(["openai", "anthropic"]), st.booleans(), st.integers(0, 300))
def test_never_raises(noise: bytes, dialect: Dialect, stream: bool, at: int) -> None:
    good = events({"choices": [], "usage": {**USAGE, "prompt_tokens_details": {"cached_tokens": 1}}})
    read(noise, stream=stream, dialect=dialect)
    read(good[:at] + noise + good[at:], stream=stream, dialect=dialect)
    read(b'"usage":' + noise + b'"usage":{' + noise, stream=stream, dialect=dialect, pieces=7)


def test_what_cannot_be_read_is_unknown() -> None:
    mirror = Mirror(event_stream=False)
    mirror.add(json.dumps({"usage": USAGE}).encode())
    assert counts(read_usage(mirror, "openai")) == (11, 5)
    mirror.readable = False
    assert read_usage(mirror, "openai") is None


def test_deep_nonsense_does_not_raise() -> None:
    for text in (b'{"usage":' + b"[" * 100_000, b'{"usage":{"a":' + b"[" * 5000 + b"}}", b'"usage"' * 10_000):
        assert read(text) is None
        assert read(text, stream=True) is None
