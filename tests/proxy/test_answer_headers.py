"""What the headers of an answer say."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastllm_proxy.answer_headers import AnswerHeaders
from tests.fakes.engine import Answer
from tests.proxy.fleet import CHAT, fleet


@pytest.mark.parametrize(
    ("kind", "event_stream"),
    [
        (b"text/event-stream", True),
        (b"Text/Event-Stream; charset=utf-8", True),
        (b"application/json", False),
        (b"", False),
    ],
)
def test_what_kind_of_answer_it_is(kind: bytes, event_stream: bool) -> None:
    read = AnswerHeaders(((b"content-type", kind), (b"x-own", b"1"), (b"content-encoding", b"GZIP")))
    assert (read.event_stream, read.coding) == (event_stream, b"gzip")
    assert read.lines.startswith(b"content-type: " + kind + b"\r\nx-own: 1\r\n")
    assert (b"cache-control: no-cache" in read.lines) is event_stream


def test_no_header_at_all() -> None:
    read = AnswerHeaders(())
    assert (read.event_stream, read.coding, read.lines) == (False, b"", b"")


async def test_each_answer_has_its_own_headers_though_they_are_kept_with_the_backend(tmp_path: Path) -> None:
    async with fleet(tmp_path, Answer()) as (proxy, engines):
        answers = [Answer(headers=(("x-own", value),)) for value in ("1", "1", "2", "1")]
        engines[0].script(CHAT, *answers)
        assert [(await proxy.post()).headers["x-own"] for _ in answers] == ["1", "1", "2", "1"]
