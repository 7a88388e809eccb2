from __future__ import annotations

import os

import msgspec
import pytest

from fastllm_proxy.access_log import FLUSH_BYTES, KEPT_PARTIES, AccessLog, AccessRecord, TextLines
from fastllm_proxy.sink import LineSink

RECORD = AccessRecord(
    at=1_796_000_000.25,
    id="req-1",
    endpoint="/chat/completions",
    status=200,
    duration_ms=812.345,
    ttft_ms=42.06,
    stream=True,
    attempts=1,
    principal="team a",
    key_prefix="sk-abcdefgh",
    model="assistant",
    provider_model="qwen",
    backend="b-1",
    prompt_tokens=10,
    completion_tokens=0,
)


class Collected(LineSink):
    """A sink that is read at once."""

    def __init__(self) -> None:
        super().__init__(-1)
        self.written: list[tuple[bytes, int]] = []

    def write(self, lines: bytes, count: int = 1) -> None:
        self.written.append((lines, count))


def test_json_lines_hold_what_is_known_and_nothing_else() -> None:
    sink = Collected()
    log = AccessLog(sink, "json")
    log.write(RECORD)
    log.write(
        AccessRecord(at=1.0, id="req-2", endpoint="other", status=404, duration_ms=0.1, code="unknown_url")
    )
    assert sink.written == []
    log.flush()
    ((lines, count),) = sink.written
    first, second = (msgspec.json.decode(line) for line in lines.splitlines())
    assert count == 2
    assert first == {
        name: value
        for name in AccessRecord.__struct_fields__
        if (value := getattr(RECORD, name)) is not None and name != "code"
    }
    assert second == {
        "at": 1.0,
        "id": "req-2",
        "endpoint": "other",
        "status": 404,
        "duration_ms": 0.1,
        "code": "unknown_url",
    }


def test_text_lines() -> None:
    lines = TextLines()
    assert lines.line(RECORD).decode() == (
        "2026-11-30T00:53:20.250Z 200 /chat/completions 812.3ms id=req-1 ttft=42.1ms stream"
        ' principal="team a" key_prefix=sk-abcdefgh model=assistant provider_model=qwen backend=b-1'
        " attempts=1 prompt_tokens=10 completion_tokens=0\n"
    )
    bare = AccessRecord(at=1_796_000_001.0, id="q", endpoint="other", status=404, duration_ms=0.0, code="x y")
    assert lines.line(bare).decode() == (
        '2026-11-30T00:53:21.000Z 404 other 0.0ms id=q attempts=0 code="x y"\n'
    )


def test_text_lines_of_many_parties() -> None:
    lines = TextLines()
    for number in range(KEPT_PARTIES + 10):
        record = msgspec.structs.replace(RECORD, principal=f"team-{number}")
        assert f" principal=team-{number} key_prefix=".encode() in lines.line(record)


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_no_name_breaks_a_line(log_format: str) -> None:
    sink = Collected()
    log = AccessLog(sink, "json" if log_format == "json" else "text")
    log.write(msgspec.structs.replace(RECORD, principal="a\nb\x1b[31m\u2028c", model="d\r\ne"))
    log.flush()
    assert sink.written[0][0].count(b"\n") == 1
    assert b"\x1b" not in sink.written[0][0]
    assert b"\r" not in sink.written[0][0]


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_what_cannot_be_written_costs_its_own_line_only(log_format: str) -> None:
    sink = Collected()
    log = AccessLog(sink, "json" if log_format == "json" else "text")
    log.write(RECORD)
    log.write(msgspec.structs.replace(RECORD, principal="\ud800"))
    log.write(RECORD)
    log.flush()
    lines, count = sink.written[0]
    assert (log.unwritable, count, len(lines.splitlines())) == (1, 2, 2)
    assert lines.splitlines()[0] == lines.splitlines()[1]


def test_it_leaves_by_size_without_being_asked() -> None:
    sink = Collected()
    log = AccessLog(sink, "json")
    while not sink.written:
        log.write(RECORD)
    assert FLUSH_BYTES <= len(sink.written[0][0]) < FLUSH_BYTES + 1000


def test_a_record_has_no_place_for_what_must_not_be_logged() -> None:
    assert not {"key", "prompt", "query", "headers", "body", "path"} & set(AccessRecord.__struct_fields__)


def test_an_empty_flush_writes_nothing() -> None:
    reading, writing = os.pipe()
    try:
        sink = LineSink(writing)
        AccessLog(sink, "text").flush()
        assert sink.flush(1.0)
        os.set_blocking(reading, False)
        with pytest.raises(BlockingIOError):
            os.read(reading, 1)
    finally:
        os.close(reading)
        os.close(writing)
