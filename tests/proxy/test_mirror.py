from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fastllm_proxy.mirror import HEAD_BYTES, TAIL_BYTES, Mirror


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


def test_memory_is_bounded() -> None:
    mirror = Mirror(event_stream=True)
    for _ in range(1000):
        mirror.add(b"x" * 5000)
    assert len(mirror.tail()) <= 5 * TAIL_BYTES
