"""Compressed answers are read beside their passing, at every boundary between pieces and never too much."""

from __future__ import annotations

import gzip
import json
import zlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastllm_proxy.compressed import (
    ERROR_BYTES,
    MEMBERS,
    PIECE_BYTES,
    CompressedMirror,
    Inflater,
    coding_of,
    mirror_of,
    readable,
)
from fastllm_proxy.figures import read_usage
from fastllm_proxy.mirror import SLACK_BYTES, WHOLE_BYTES, Mirror

USAGE = b'"usage":{"prompt_tokens":11,"completion_tokens":5}'
CODINGS = ["gzip", "x-gzip", "members", "zlib", "bare"]


def pack(kind: str, text: bytes) -> tuple[bytes, bytes]:
    """The coding's name and the bytes."""
    if kind in ("gzip", "x-gzip"):
        return kind.encode(), gzip.compress(text, mtime=0)
    if kind == "members":
        half = len(text) // 2
        return b"gzip", gzip.compress(text[:half], mtime=0) + gzip.compress(text[half:], mtime=0)
    packer = zlib.compressobj(wbits=15 if kind == "zlib" else -15)
    return b"deflate", packer.compress(text) + packer.flush()


def inflated(coding: bytes, data: bytes, cuts: list[int]) -> bytes:
    inflater = Inflater(coding)
    bounds = sorted({0, len(data), *(at % (len(data) + 1) for at in cuts)})
    text = b"".join(inflater.feed(data[a:b]) for a, b in pairwise(bounds))
    assert not inflater.given_up
    return text


@given(st.sampled_from(CODINGS), st.binary(max_size=2000), st.lists(st.integers(0, 1 << 12), max_size=12))
def test_every_coding_at_every_boundary(kind: str, text: bytes, cuts: list[int]) -> None:
    coding, data = pack(kind, text)
    assert inflated(coding, data, cuts) == text
    assert inflated(coding, data, list(range(len(data)))) == text


def test_the_name_of_a_coding() -> None:
    for values, expected in (
        ((), b""),
        ((b"identity",), b""),
        ((b"", b" "), b""),
        ((b"GZip",), b"gzip"),
        ((b"gzip, identity",), b"gzip"),
        ((b"gzip , br",), b"gzip,br"),
        ((b"gzip", b"gzip"), b"gzip,gzip"),
    ):
        headers = tuple((b"content-encoding", value) for value in values)
        assert coding_of(((b"content-type", b"x"), *headers)) == expected


def test_an_answer_that_is_not_compressed_has_a_plain_mirror() -> None:
    assert type(mirror_of(b"", event_stream=True)) is Mirror
    assert type(mirror_of(b"gzip", event_stream=True)) is CompressedMirror


@pytest.mark.parametrize("kind", CODINGS)
@pytest.mark.parametrize("filler", [0, 30_000, 3_000_000])
def test_usage_is_read_whatever_the_length(kind: str, filler: int) -> None:
    text = b'{"data":"%b",%b}' % (b"0123456789abcdef" * (filler // 16), USAGE)
    coding, data = pack(kind, text)
    mirror = CompressedMirror(coding, event_stream=False)
    assert mirror.empty
    for at in range(0, len(data), 1000):
        mirror.add(data[at : at + 1000])
        assert len(mirror.text) <= WHOLE_BYTES
        assert not mirror.empty
    usage = read_usage(mirror, "openai")
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (11, 5)
    assert mirror.tail() == text[-len(mirror.tail()) :]


def test_a_stream_that_breaks_off_says_what_came_until_then() -> None:
    packer = zlib.compressobj(wbits=31)
    event = b'data: {"choices":[],%b}\n\n' % USAGE
    mirror = CompressedMirror(b"gzip", event_stream=True)
    mirror.add(packer.compress(event) + packer.flush(zlib.Z_SYNC_FLUSH))
    usage = read_usage(mirror, "openai")
    assert usage is not None
    assert usage.prompt_tokens == 11


@pytest.mark.parametrize("coding", [b"br", b"zstd", b"gzip,gzip", b"compress", b"x"])
def test_other_codings_are_unknown_and_cost_nothing(coding: bytes) -> None:
    mirror = CompressedMirror(coding, event_stream=False)
    mirror.add(b"{%b}" % USAGE)
    assert not mirror.readable
    assert not mirror.empty
    assert not mirror.text
    assert read_usage(mirror, "openai") is None


@pytest.mark.parametrize("kind", CODINGS)
def test_a_bomb_is_given_up(kind: str) -> None:
    coding, data = pack(kind, b" " * (64 * PIECE_BYTES) + b"{%b}" % USAGE)
    mirror = CompressedMirror(coding, event_stream=False)
    for at in range(0, len(data), 65_536):
        mirror.add(data[at : at + 65_536])
        assert len(mirror.text) <= WHOLE_BYTES
    assert not mirror.readable
    assert read_usage(mirror, "openai") is None


def test_a_slow_bomb_is_given_up_by_its_total() -> None:
    mirror = CompressedMirror(b"gzip", event_stream=True, total_bytes=4 * PIECE_BYTES)
    packer = zlib.compressobj(wbits=31)
    for number in range(6):
        mirror.add(packer.compress(b" " * (PIECE_BYTES - 100_000)) + packer.flush(zlib.Z_SYNC_FLUSH))
        assert mirror.readable is (number < 4)
        assert len(mirror.text) <= SLACK_BYTES


def test_members_without_end_are_given_up() -> None:
    empty = gzip.compress(b"", mtime=0)
    inflater = Inflater(b"gzip")
    inflater.feed(empty * (MEMBERS - 1))
    assert not inflater.given_up
    inflater.feed(empty * (MEMBERS + 1))
    assert inflater.given_up


@given(st.sampled_from([b"gzip", b"deflate"]), st.lists(st.binary(max_size=60), max_size=6))
def test_nonsense_never_raises(coding: bytes, pieces: list[bytes]) -> None:
    mirror = CompressedMirror(coding, event_stream=False)
    for piece in pieces:
        mirror.add(piece)
    read_usage(mirror, "openai")
    readable(b"".join(pieces), coding)


def test_what_follows_the_end_of_deflate_is_nobodys() -> None:
    coding, data = pack("zlib", b"text")
    inflater = Inflater(coding)
    assert inflater.feed(data + b"junk") == b"text"
    assert inflater.feed(b"more junk") == b""


def test_an_errors_text_is_read_up_to_a_bound() -> None:
    text = json.dumps({"error": {"message": "the model is missing"}}).encode()
    for kind in CODINGS:
        coding, data = pack(kind, text)
        assert readable(data, coding) == text
    assert readable(text, b"") == text
    assert readable(text, b"br") == b""
    assert readable(text, b"gzip") == b""
    bomb = readable(gzip.compress(text + b" " * 10_000_000), b"gzip")
    assert bomb.startswith(text)
    assert len(bomb) == ERROR_BYTES
