from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastllm_proxy.chunks import FRAMING_BYTES, LINE_BYTES, Chunks
from fastllm_proxy.errors import Refused
from fastllm_proxy.heads import ConnectionLimits

LIMITS = ConnectionLimits(head_bytes=1_000, head_fields=3)


def decode(*parts: bytes) -> tuple[bytes, bytes, bool]:
    """What is decoded of `parts`, fed in turn, what is left behind the end, and whether the end came."""
    chunks = Chunks(LIMITS)
    pieces: list[bytes] = []
    rest = b""
    for part in parts:
        if chunks.complete:
            rest += part
        else:
            stop = chunks.feed(part, memoryview(part), 0, len(part), pieces)
            rest += part[stop:]
    assert chunks.decoded == len(b"".join(pieces))
    return b"".join(pieces), rest, chunks.complete


@pytest.mark.parametrize(
    ("wire", "body"),
    [
        (b"0\r\n\r\n", b""),
        (b"00000\r\n\r\n", b""),
        (b"4\r\nabcd\r\n0\r\n\r\n", b"abcd"),
        (b"00a\r\n0123456789\r\n1\r\n\n\r\n0\r\n\r\n", b"0123456789\n"),
        (b"A\r\n\r\n0\r\n\r\n\r\n\x00\r\n0\r\n\r\n", b"\r\n0\r\n\r\n\r\n\x00"),
        (b'4;a=b;c="d\xe9"\r\nabcd\r\n0;last\r\n\r\n', b"abcd"),
        (b"4\r\nabcd\r\n0\r\nX-Trailer: a\r\nOther:\r\n\r\n", b"abcd"),
    ],
)
def test_what_is_decoded_does_not_depend_on_the_cuts(wire: bytes, body: bytes) -> None:
    assert decode(wire + b"GET /") == (body, b"GET /", True)
    assert decode(*[bytes((byte,)) for byte in wire + b"GET /"]) == (body, b"GET /", True)
    for cut in range(1, len(wire)):
        assert decode(wire[:cut], wire[cut:] + b"GET /") == (body, b"GET /", True)
        assert decode(wire[:cut])[2] is False


@given(pieces=st.lists(st.binary(min_size=1, max_size=30), max_size=6), cuts=st.lists(st.integers(0, 200)))
def test_any_body_comes_out_as_it_went_in(pieces: list[bytes], cuts: list[int]) -> None:
    wire = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    at = 0
    parts = []
    for cut in [*sorted(cuts), len(wire)]:
        parts.append(wire[at : max(at, cut)])
        at = max(at, cut)
    assert decode(*parts, b"next") == (b"".join(pieces), b"next", True)


@pytest.mark.parametrize(
    "wire",
    [
        b"\r\n",
        b"zz\r\n",
        b"0x4\r\nabcd\r\n",
        b"+4\r\nabcd\r\n",
        b"-4\r\nabcd\r\n",
        b" 4\r\nabcd\r\n",
        b"4 \r\nabcd\r\n",
        b"4\nabcd\n0\n\n\r\n",
        b"4\r\nabcde\r\n",
        b"4\r\nabcd0\r\n\r\n",
        b"4\r\nabcd\n0\r\n\r\n",
        b"4\r\nabcd\r0\r\n\r\n",
        b"4;a\nb\r\nabcd\r\n",
        b"4;a\x00\r\nabcd\r\n",
        b"4\r\rabcd\r\n",
        b"10000000000000000\r\n",
        b"4\r\nabcd\r\n0\r\n\n",
        b"0\r\nno trailer\r\n\r\n",
        b"0\r\nA : b\r\n\r\n",
        b"0\r\nA: b\r\n folded\r\n\r\n",
        b"0\r\nA: b\x00\r\n\r\n",
        b"0\r\nA: b\nC: d\r\n\r\n",
        b"4;" + b"a" * LINE_BYTES + b"\r\n",
        b"1\r\na\r\n" * (FRAMING_BYTES // 4 + 1),
        b"1;%b\r\na\r\n" % (b"a" * 4_000) * (FRAMING_BYTES // 4_000 + 1),
    ],
)
def test_what_two_readers_could_read_differently_is_refused(wire: bytes) -> None:
    for parts in ([wire + b"\r\n"], [bytes((byte,)) for byte in wire + b"\r\n"]):
        with pytest.raises(Refused) as refusal:
            decode(*parts)
        assert refusal.value.status == 400


@pytest.mark.parametrize(
    "trailers", [b"A: b\r\n" * 4, b"A: " + b"b" * 1_000 + b"\r\n", b"A: " + b"b" * 1_100]
)
def test_trailers_are_limited_like_heads(trailers: bytes) -> None:
    with pytest.raises(Refused) as refusal:
        decode(b"0\r\n", trailers)
    assert refusal.value.status == 431


def test_a_line_without_end_is_refused_before_it_ends() -> None:
    with pytest.raises(Refused):
        decode(b"4;" + b"a" * LINE_BYTES)
    with pytest.raises(Refused):
        decode(b"4\r\nabcd", b"x")


@given(st.binary(max_size=200))
def test_noise_is_decoded_or_refused(noise: bytes) -> None:
    with contextlib.suppress(Refused):
        decode(noise)
