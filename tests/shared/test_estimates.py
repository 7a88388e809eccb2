from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest

from fastllm_shared.estimates import (
    AFFINITY_BYTES,
    conversation_key,
    conversation_start,
    expected_cost,
    expected_generation,
    prompt_tokens,
    requested_tokens,
)
from fastllm_shared.members import scan
from fastllm_shared.snapshot import ProviderModelEntry


def start(body: bytes) -> bytes:
    spans = {name: (begin, end) for name, begin, end in scan(body)}
    members = {name: msgspec.Raw(body[begin:end]) for name, (begin, end) in spans.items()}
    return conversation_start(members, body, spans["model"][1])


def test_the_prompt_is_a_quarter_of_its_bytes_without_embedded_files() -> None:
    assert prompt_tokens(b"x" * 401) == 100
    files = b'{"a":["data:x;base64,' + b"A" * 999 + b'","data:y;base64,' + b"B" * 999 + b'"]}'
    assert prompt_tokens(files) < 20
    assert prompt_tokens(bytearray(files)) == prompt_tokens(files)
    broken = b'{"x":";base64,AAAAAAAA'
    assert prompt_tokens(broken) == len(broken) // 4


FILE = base64.b64encode(bytes(range(256)) * 40).decode()


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": FILE}},
        {"type": "input_audio", "input_audio": {"data": FILE, "format": "wav"}},
        {"type": "file", "file": {"file_data": FILE, "filename": "a.pdf"}},
        {"type": "input_file", "file_data": "data:application/pdf;base64," + FILE},
        {"type": "image", "source": {"data": base64.encodebytes(FILE.encode()).decode()}},
        {"type": "image", "source": {"data": FILE.replace("+", "-").replace("/", "_")}},
    ],
)
def test_a_file_is_left_out_however_its_dialect_embeds_it(part: dict[str, object]) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": [part, part]}]}
    empty = json.dumps(body).replace(json.dumps(FILE)[1:-1], "")
    for text in (json.dumps(body), json.dumps(body, indent=1), json.dumps(body, separators=(",", ":"))):
        for written in (text, text.replace("/", "\\/")):
            assert prompt_tokens(written.encode()) < 100, written[:200]
    assert prompt_tokens(json.dumps(body).encode()) <= len(empty) // 4


@pytest.mark.parametrize(
    "body",
    [
        {"data": "what a person wrote, " * 500},
        {"data": [1, 2, 3] * 500},
        {"data": "short"},
        {"content": FILE},
        {"content": f'{{"data": "{FILE}"}}'},
    ],
)
def test_text_counts_whatever_it_is_called(body: dict[str, object]) -> None:
    written = json.dumps(body).encode()
    assert prompt_tokens(written) == len(written) // 4


def test_no_body_counts_less_than_nothing() -> None:
    twice = b'{"data":"' + b"A" * 256 + b";base64," + b"A" * 4000 + b'"}'
    assert prompt_tokens(twice) == 0
    unfinished = b'{"data":"' + b"A" * 400
    assert prompt_tokens(unfinished) == len(unfinished) // 4


@pytest.mark.parametrize(
    ("members", "tokens"),
    [
        ({}, None),
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 7, "max_tokens": 5, "n": 3}, 21),
        ({"max_output_tokens": 9, "n": 0}, 9),
        ({"max_tokens": None}, None),
        ({"max_tokens": "5", "max_output_tokens": 4}, 4),
        ({"max_tokens": -5}, 0),
        ({"max_tokens": 5, "n": "x"}, 5),
    ],
)
def test_requested_generation(members: dict[str, Any], tokens: int | None) -> None:
    raw = {name: msgspec.Raw(json.dumps(value).encode()) for name, value in members.items()}
    assert requested_tokens(raw) == tokens


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
@pytest.mark.parametrize("role_last", [False, True])
def test_the_beginning_of_a_conversation_is_the_same_in_every_turn(
    separators: tuple[str, str], role_last: bool
) -> None:
    def body(*contents: str) -> bytes:
        messages = []
        for at, text in enumerate(contents):
            role = ("system", "user", "assistant", "user")[at]
            message = {"role": role, "content": text}
            messages.append(dict(reversed(message.items())) if role_last else message)
        return json.dumps({"messages": messages, "model": "m"}, separators=separators).encode()

    for opening in ("short", "long " * 1000, 'with "role" and "user" {braces}'):
        first = start(body("system", opening))
        assert first == start(body("other system", opening, "answer"))
        assert first == start(body("system", opening, "answer", "again" * 500))
        assert first != start(body("system", opening[1:]))
        assert len(first) <= AFFINITY_BYTES


def test_bodies_without_a_user_message() -> None:
    assert start(b'{"model":"m","input":"abc","x":1}') == b'"abc"'
    assert start(b'{"x":1,"model":"m","prompt":"abc"}') == b',"prompt":"abc"}'
    assert start(b'{"model":"m","messages":[]}') == b',"messages":[]}'
    assert start(b'{"model":"m","messages":7}') == b',"messages":7}'
    assert len(start(b'{"model":"m","input":"' + b"x" * 5000 + b'"}')) == AFFINITY_BYTES


def test_another_principal_is_another_key() -> None:
    assert conversation_key("a", b"x") == conversation_key("a", b"x")
    assert len({conversation_key("a", b"x"), conversation_key("b", b"x"), conversation_key("a", b"y")}) == 3


@pytest.mark.parametrize(
    ("prices", "prompt", "generated", "cost"),
    [
        ((500, 1500), 10, 20, 35_000),
        ((0, 0), 10, 20, 0),
        ((500, None), 10, 20, None),
        ((500, None), 10, 0, 5_000),
        ((None, 1500), 0, 20, 30_000),
        ((None, None), 10, 20, None),
    ],
)
def test_a_cost_is_known_when_every_price_that_counts_is(
    prices: tuple[int | None, int | None], prompt: int, generated: int, cost: float | None
) -> None:
    model = ProviderModelEntry("m", "m", input_price_per_mtok=prices[0], output_price_per_mtok=prices[1])
    assert expected_cost(model, prompt, generated) == cost


@pytest.mark.parametrize(
    ("requested", "generates", "tokens"),
    [(None, True, 1024), (7, True, 7), (0, True, 0), (None, False, 0), (7, False, 0)],
)
def test_what_will_be_generated(requested: int | None, generates: bool, tokens: int) -> None:
    assert expected_generation(requested, generates=generates) == tokens
