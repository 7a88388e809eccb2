"""Events and the hidden usage event, at every boundary between pieces."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastllm_proxy.sse import (
    END_BYTES,
    HELD_BYTES,
    UsageHider,
    ends_event,
    event_end,
    fields,
    is_usage_event,
)

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


ENDS = [b"\n", b"\r\n", b"\r"]
HIDDEN = [USAGE, SPACED, USAGE.replace(b',"usage', b',\ndata: "usage'), b"id: 7\nretry: 5\n" + USAGE]


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A stream with line ends of every kind, and what is to be left of it."""
    end = st.sampled_from(ENDS)
    fill = st.sampled_from([b"", b"", b"x" * 500, b"y" * 5000])
    whole = kept = b""
    for event in draw(st.lists(st.sampled_from([*KEPT, *HIDDEN]), max_size=8)):
        long = event + draw(fill) if event not in HIDDEN else event
        text = b"".join(line + draw(end) for line in long.split(b"\n"))
        # An LF behind a CR is the second half of one line end, not an empty line.
        text += draw(end) if text[-1:] != b"\r" else draw(st.sampled_from([b"\r\n", b"\r"]))
        if whole[-1:] == b"\r" and text[:1] == b"\n":
            text = b"\r" + text
        whole += text
        kept += b"" if event in HIDDEN else text
    return whole, kept


def cut(whole: bytes, cuts: list[int]) -> list[bytes]:
    bounds = sorted({0, len(whole), *(at % (len(whole) + 1) for at in cuts)})
    return [whole[a:b] for a, b in pairwise(bounds)]


CUTS = st.lists(st.integers(0, 1 << 16), max_size=12)


@given(streams(), CUTS)
def test_only_usage_events_go(stream: tuple[bytes, bytes], cuts: list[int]) -> None:
    whole, kept = stream
    assert hidden(cut(whole, cuts)) == kept


@given(streams())
def test_only_usage_events_go_byte_by_byte(stream: tuple[bytes, bytes]) -> None:
    whole, kept = stream
    assert hidden([whole[at : at + 1] for at in range(len(whole))]) == kept


@given(streams(), CUTS)
def test_nothing_waits_but_the_event_that_is_not_complete(
    stream: tuple[bytes, bytes], cuts: list[int]
) -> None:
    hider = UsageHider()
    seen = b""
    written = b""
    for piece in cut(stream[0], cuts):
        seen += piece
        written += hider.feed(piece)
        complete = 0
        while (end := event_end(seen, complete)) >= 0:
            complete = end
        rest = seen[complete:]
        waiting = 0 if len(rest) > HELD_BYTES or hider.within else len(rest)
        assert len(written) == len(hidden([seen[:complete]])) + len(rest) - waiting
        assert waiting <= HELD_BYTES


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


@pytest.mark.parametrize("size", [HELD_BYTES - 1, HELD_BYTES, HELD_BYTES + 1, 65_536])
def test_an_unfinished_event_of_the_size_that_is_held(size: int) -> None:
    event = b"data: ".ljust(size, b"z")
    hider = UsageHider()
    assert hider.feed(event) == (event if size > HELD_BYTES else b"")
    assert hider.within is (size > HELD_BYTES)
    assert hider.feed(b"\n\n" + USAGE + b"\n\n") == (b"\n\n" if size > HELD_BYTES else event + b"\n\n")
    assert not hider.within


def test_a_usage_event_with_its_second_half_of_the_line_end_in_another_piece() -> None:
    for end in (b"\r\n\r", b"\n\r", b"\r\r"):
        assert hidden([USAGE + end, b"\n" + CONTENT + b"\n\n"]) == CONTENT + b"\n\n"
        assert hidden([CONTENT + end, b"\n", USAGE + b"\n\n"]) == CONTENT + end + b"\n"
        assert hidden([USAGE + end, b"\n\n"]) == b"\n"


def test_what_only_looks_like_usage_stays() -> None:
    for event in (
        b'data: {"choices":[],"us\\u0061ge":{"prompt_tokens":1}}',
        b'data: {"choices":[],"x":"\\"usage\\":{}"}',
        b'data: {"choices":[],"x":{"usage":{"prompt_tokens":1}}}',
        b': {"choices":[],"usage":{"prompt_tokens":1}}',
        b'x-data: {"choices":[],"usage":{"prompt_tokens":1}}',
    ):
        assert hidden([event + b"\n\n"]) == event + b"\n\n"


def test_a_long_line_is_not_looked_at_again_and_again() -> None:
    hider = UsageHider()
    hider.feed(b"data: ")
    for _ in range(4000):
        hider.feed(b"x" * 4096)
        assert len(hider.held) <= HELD_BYTES
    assert hider.within
    assert len(hider.held) == END_BYTES


def test_where_an_event_ends_by_its_last_bytes() -> None:
    for first in ENDS:
        for second in ENDS:
            text = b"data: x" + first + second
            if (first, second) == (b"\r", b"\n"):
                assert not ends_event(text)  # one line end, CRLF
                continue
            assert event_end(text) == len(text)
            assert ends_event(text)
            assert ends_event(text[-END_BYTES:])
            assert not ends_event(text + b"x")
    assert not ends_event(b"data: x\r\n")
    assert not ends_event(b"")


def test_a_mark_before_the_first_event() -> None:
    assert fields(b"\xef\xbb\xbfdata: x\n\n") == (b"", b"x")


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
