"""Events and the hidden usage event, at every boundary between pieces."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastllm_proxy.sse import HELD_BYTES, UsageHider, event_end, fields, is_usage_event

CONTENT = b'data: {"choices":[{"delta":{"content":"hi \\"usage\\" there"}}],"usage":null}'
USAGE = b'data: {"id":"x","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":6}}'
SPACED = b'data: {"choices" : [ ] , "usage" : {"prompt_tokens" : 7}}'
KEPT = [
    CONTENT,
    b'data: {"choices":[],"usage":null}',
    b'data: {"choices":[{}],"usage":{"prompt_tokens":7}}',
    b'data: {"usage":{"prompt_tokens":7}}',
    b'data: {"choices":[]}',
    b": ping",
    b"event: message\ndata: {}",
    b'data: not "usage" json',
    b"data: [DONE]",
    b"",
]


def hidden(pieces: list[bytes]) -> bytes:
    hider = UsageHider()
    return b"".join(map(hider.feed, pieces)) + hider.rest()


def stream(events: list[bytes], end: bytes) -> bytes:
    return b"".join(event.replace(b"\n", end) + end + end for event in events)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("usage", [USAGE, SPACED, b": note\n" + USAGE, USAGE.replace(b"data: ", b"data:")])
def test_every_boundary(end: bytes, usage: bytes) -> None:
    whole = stream([CONTENT, usage, b"data: [DONE]"], end)
    expected = stream([CONTENT, b"data: [DONE]"], end)
    for first in range(len(whole) + 1):
        assert hidden([whole[:first], whole[first:]]) == expected
    assert hidden([whole[at : at + 1] for at in range(len(whole))]) == expected


@given(
    st.lists(st.sampled_from([*KEPT, USAGE, SPACED]), max_size=8),
    st.sampled_from([b"\n", b"\r\n"]),
    st.lists(st.integers(0, 600), max_size=12),
)
def test_only_usage_events_go(events: list[bytes], end: bytes, cuts: list[int]) -> None:
    whole = stream(events, end)
    bounds = sorted({0, len(whole), *(cut for cut in cuts if cut <= len(whole))})
    pieces = [whole[a:b] for a, b in pairwise(bounds)]
    assert hidden(pieces) == stream([e for e in events if e not in (USAGE, SPACED)], end)


def test_whole_events_are_passed_at_once() -> None:
    hider = UsageHider()
    piece = CONTENT + b"\n\n"
    assert hider.feed(piece) == piece
    assert hider.feed(b"data: {}\n\n") == b"data: {}\n\n"


def test_an_unfinished_event_is_held_until_it_ends() -> None:
    hider = UsageHider()
    assert hider.feed(b"data: {}\n\ndata: {") == b"data: {}\n\n"
    assert hider.feed(b"}\n") == b""
    assert hider.feed(b"\n") == b"data: {}\n\n"


def test_an_event_that_grows_too_long_is_let_go() -> None:
    hider = UsageHider()
    long = b'data: {"choices":[],"usage":{"x":"' + b"y" * HELD_BYTES
    assert hider.feed(long) == long
    assert hider.within
    # Its end lies across two pieces, and right behind it comes the event that must be hidden.
    assert hider.feed(b'"}}\n') == b'"}}\n'
    assert hider.feed(b"\n" + USAGE + b"\n\ndata: [DONE]\n\n") == b"\ndata: [DONE]\n\n"
    assert not hider.within


@given(st.lists(st.integers(1, 9000), max_size=6), st.sampled_from([b"\n", b"\r\n"]))
def test_long_events_at_any_boundary(cuts: list[int], end: bytes) -> None:
    long = b"data: " + b"z" * 6000
    whole = stream([long, USAGE, long], end)
    bounds = sorted({0, len(whole), *(cut for cut in cuts if cut <= len(whole))})
    pieces = [whole[a:b] for a, b in pairwise(bounds)]
    assert hidden(pieces) == stream([long, long], end)


def test_an_event_that_nothing_closed() -> None:
    assert hidden([CONTENT]) == CONTENT
    assert hidden([CONTENT + b"\n\n" + USAGE + b"\n"]) == CONTENT + b"\n\n"


def test_fields_of_an_event() -> None:
    assert fields(b": c\nevent: error\r\ndata: a\ndata:b\nid: 1\n\n") == (b"error", b"a\nb")


def test_the_end_of_an_event() -> None:
    assert event_end(b"data: x\n") == -1
    assert event_end(b"data: x\n\ndata: y\n\n") == 9
    assert event_end(b"data: x\n\ndata: y\n\n", 9) == 18
    assert event_end(b"data: x\r\n\r\n") == 11


@pytest.mark.parametrize("event", KEPT)
def test_what_is_no_usage_event(event: bytes) -> None:
    assert not is_usage_event(event)


def test_nonsense_is_no_usage_event() -> None:
    for data in (b'"usage"', b'{"usage":1,"choices":5}', b'{"usage":' + b"[" * 100_000, b'\xff"usage"'):
        assert not is_usage_event(b"data: " + data)
