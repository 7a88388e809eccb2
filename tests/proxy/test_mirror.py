from __future__ import annotations

from sys import getsizeof

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastllm_proxy.mirror import HEAD_BYTES, SLACK_BYTES, TAIL_BYTES, WHOLE_BYTES, Mirror, WholeAnswer


@given(st.lists(st.integers(0, 40_000), max_size=12))
def test_head_and_tail_survive_whatever_the_pieces(sizes: list[int]) -> None:
    mirror = Mirror(event_stream=False)
    text = bytes(at % 251 for at in range(sum(sizes)))
    position = 0
    for size in sizes:
        mirror.add(text[position : position + size])
        position += size
    tail = mirror.tail()
    assert text.endswith(tail)
    if mirror.whole:
        assert tail == text
    else:
        assert mirror.head == text[:HEAD_BYTES]
        assert len(tail) >= TAIL_BYTES
    assert mirror.empty is (text == b"")


@pytest.mark.parametrize("size", [1, 2, 5000, 65_536])
def test_memory_is_bounded_whatever_the_pieces(size: int) -> None:
    mirror = Mirror(event_stream=True)
    piece = b"x" * size
    for _ in range(max(100, 100_000 // size)):
        mirror.add(piece)
    assert len(mirror.tail()) <= SLACK_BYTES
    assert getsizeof(mirror.text) + getsizeof(mirror.head) < 64 * 1024


def test_an_answer_of_some_length_is_kept_whole_unless_it_is_a_stream() -> None:
    for event_stream in (False, True):
        mirror = Mirror(event_stream=event_stream)
        mirror.add(b"x" * WHOLE_BYTES)
        assert mirror.whole is not event_stream


def test_an_answer_that_is_there_is_not_copied() -> None:
    body = b"x" * 50_000
    kept = WholeAnswer(body)
    assert kept.tail() is body
    assert (kept.whole, kept.readable, kept.empty, WholeAnswer(b"").empty) == (True, True, False, True)
