from __future__ import annotations

import gzip
import itertools
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastllm_proxy.errors import Refused
from fastllm_proxy.inflation import INFLATED_STEP_BYTES, KEPT_BYTES, MAX_MEMBERS, Inflater, inflate


def inflated(*pieces: bytes) -> bytes:
    inflater = Inflater()
    found = []
    for piece in pieces:
        inflater.put(piece)
        while (step := inflater.take()) is not None:
            assert len(step) <= INFLATED_STEP_BYTES
            found.append(step)
    inflater.finish()
    return b"".join(found)


@given(data=st.binary(max_size=300), cuts=st.lists(st.integers(0, 400)), wbits=st.sampled_from((15, -15, 31)))
def test_every_format_is_decoded_however_it_is_cut(data: bytes, cuts: list[int], wbits: int) -> None:
    packed = zlib.compress(data, wbits=wbits)
    edges = sorted({0, len(packed), *(cut for cut in cuts if cut < len(packed))})
    assert inflated(*[packed[a:b] for a, b in itertools.pairwise(edges)]) == data


@given(members=st.lists(st.binary(max_size=50), min_size=1, max_size=9), size=st.integers(1, 70))
def test_any_number_of_gzip_members_are_one_body(members: list[bytes], size: int) -> None:
    packed = b"".join(map(gzip.compress, members))
    pieces = [packed[at : at + size] for at in range(0, len(packed), size)]
    assert inflated(*pieces) == b"".join(members)


@given(st.lists(st.binary(max_size=90), max_size=4))
def test_garbage_is_refused_and_nothing_else_happens(pieces: list[bytes]) -> None:
    found: tuple[int, str | None] | None = None
    try:
        inflated(*pieces)
    except Refused as refused:
        found = (refused.status, refused.code)
    assert found in (None, (400, "invalid_encoding"))


def test_members_without_end_are_refused() -> None:
    empty = gzip.compress(b"")
    assert inflated(empty * MAX_MEMBERS) == b""
    with pytest.raises(Refused):
        inflated(empty * (MAX_MEMBERS + 1))


def test_a_copy_goes_on_by_itself() -> None:
    data = bytes(range(256)) * 4_000
    packed = gzip.compress(data) + gzip.compress(b"more")
    inflater = Inflater()
    inflater.put(packed)
    first = inflater.take()
    assert first is not None
    both = []
    for reader in (inflater.copy(), inflater):
        rest = []
        while (step := reader.take()) is not None:
            rest.append(step)
        reader.finish()
        both.append(first + b"".join(rest))
    assert both == [data + b"more", data + b"more"]


@pytest.mark.parametrize("size", [0, 1, KEPT_BYTES - 1, KEPT_BYTES, KEPT_BYTES + 1, 3 * KEPT_BYTES + 7])
async def test_a_body_is_kept_once_it_is_known_to_fit(size: int) -> None:
    data = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    held: list[int] = []
    assert await inflate(gzip.compress(data, 1), size, held.append) == data
    assert sum(held) == size


async def test_what_exceeds_the_limit_is_never_kept() -> None:
    held: list[int] = []
    for size in (5, KEPT_BYTES, 4 * KEPT_BYTES):
        with pytest.raises(Refused) as refusal:
            await inflate(zlib.compress(bytes(size + 1)), size, held.append)
        assert refusal.value.status == 413
    assert max(held, default=0) <= KEPT_BYTES
    assert sum(held) <= 3 * KEPT_BYTES


async def test_damage_behind_what_is_kept_is_found_before_more_is_kept() -> None:
    held: list[int] = []
    packed = gzip.compress(bytes(4 * KEPT_BYTES)) + b"damage"
    with pytest.raises(Refused) as refusal:
        await inflate(packed, 8 * KEPT_BYTES, held.append)
    assert refusal.value.code == "invalid_encoding"
    assert sum(held) <= KEPT_BYTES
