from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from fastllm_proxy.sink import LineSink


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    os.close(writing)
    os.close(reading)


def test_lines_arrive_in_order(pipe: tuple[int, int]) -> None:
    sink = LineSink(pipe[1])
    for number in range(1000):
        sink.write(b"%d\n" % number)
    assert sink.flush(5.0)
    expected = b"".join(b"%d\n" % number for number in range(1000))
    assert os.read(pipe[0], 65_536) == expected
    assert sink.dropped == 0


def test_a_pipe_that_nobody_reads_stops_nobody_and_is_counted(pipe: tuple[int, int]) -> None:
    sink = LineSink(pipe[1], capacity_bytes=100_000)
    line = b"x" * 999 + b"\n"
    began = time.monotonic()
    for _ in range(1000):
        sink.write(line)
    assert time.monotonic() - began < 1.0
    assert not sink.flush(0.05)
    # What the pipe and the queue hold is late, the rest is lost: nothing else.
    assert 700 < sink.dropped < 1000
    kept = 1000 - sink.dropped
    received = bytearray()
    while received.count(b"\n") < kept:
        received += os.read(pipe[0], 65_536)
    assert received == line * kept


def test_a_closed_reader_is_counted_and_raises_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    sink = LineSink(writing)
    sink.write(b"a\nb\n", count=2)
    assert sink.flush(5.0)
    os.close(writing)
    assert sink.dropped == 2


def test_a_non_blocking_pipe_is_waited_for(pipe: tuple[int, int]) -> None:
    os.set_blocking(pipe[1], False)
    sink = LineSink(pipe[1])
    sink.write(b"y" * 199_999 + b"\n")
    received = bytearray()
    while len(received) < 200_000:
        received += os.read(pipe[0], 65_536)
    assert sink.flush(5.0)
    assert sink.dropped == 0
