"""Reading an error's text, and what is told of it."""

from __future__ import annotations

import gzip
import json
import time
import zlib
from typing import Any

import msgspec
import pytest

from fastllm_proxy.error_text import ERROR_BYTES, error_answer, excerpt, read_error, readable_text
from fastllm_proxy.response_parser import ResponseHead
from fastllm_proxy.upstream import UpstreamConnection
from tests.fakes.engine import Answer, FakeEngine, Fault
from tests.fakes.upstreams import ask
from tests.proxy.parts import exchange, live_backend


def head(status: int, *headers: tuple[bytes, bytes]) -> ResponseHead:
    return ResponseHead(status, headers, None)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Answer(status=500, body=b"ouch"), b"ouch"),
        (Answer(status=500, events=(b"ou", b"ch")), b"ouch"),
        (Answer(status=500, body=b"x" * ERROR_BYTES), b"x" * ERROR_BYTES),
        (Answer(status=500, body=b"x" * (ERROR_BYTES + 1)), None),
        (Answer(status=500, body=b"ouch", fault=Fault("stall", at="mid_body", split=True)), None),
        (Answer(status=500, body=b"ouch", fault=Fault("reset", at="mid_body", split=True)), None),
        (Answer(status=500, events=(b"x",) * 100, gap=0.02), None),
    ],
)
async def test_a_text_comes_whole_or_not_at_all(
    engine: FakeEngine, connection: UpstreamConnection, answer: Answer, expected: bytes | None
) -> None:
    engine.script("/chat/completions", answer)
    ask(connection)
    assert (await connection.head(5)).status == 500
    begun = time.monotonic()
    assert await read_error(connection, 0.3) == expected
    assert time.monotonic() - begun < 2


def test_an_answer_is_the_backends_own() -> None:
    answer = error_answer(exchange(), head(429, (b"retry-after", b"7"), (b"server", b"x")), b"slow")
    assert (answer.status, answer.headers, answer.body) == (429, b"retry-after: 7\r\n", b"slow")


@pytest.mark.parametrize("path", ["/chat/completions", "/messages"])
def test_an_answer_without_its_text_has_ours(path: str) -> None:
    made = exchange(path=path)
    answer = error_answer(made, head(503, (b"retry-after", b"7"), (b"content-encoding", b"gzip")), None)
    assert answer.status == 503
    assert answer.headers == b"content-type: application/json\r\nretry-after: 7\r\n"
    error: dict[str, Any] = json.loads(answer.body)["error"]
    assert error["message"] == "the backend failed, and did not say why"
    assert error.get("code") == (None if path == "/messages" else "upstream_error")


def test_a_compressed_text_is_read() -> None:
    text = b"model not found" * 10
    for coding, packed in (
        (b"gzip", gzip.compress(text)),
        (b"GZIP", gzip.compress(text)),
        (b"deflate", zlib.compress(text)),
        (b"identity", text),
    ):
        assert readable_text(head(404, (b"content-encoding", coding)), packed) == text
    assert readable_text(head(404, (b"content-encoding", b"br")), b"\x8b") == b""
    assert readable_text(head(404, (b"content-encoding", b"gzip")), b"no gzip") == b""
    assert readable_text(head(404), None) == b""
    assert len(readable_text(head(404, (b"content-encoding", b"gzip")), gzip.compress(b"0" * 10**7))) <= 65536


def test_an_excerpt_is_short_and_has_no_secrets() -> None:
    backend = live_backend(1)
    backend.provider = msgspec.structs.replace(
        backend.provider, credential="sk-upstream", extra_headers=(("x-key", "canary"),)
    )
    assert excerpt(b"key sk-upstream of canary", backend) == "key *** of ***"
    assert len(excerpt(b"x" * 5000, backend)) == 300
