from __future__ import annotations

from uuid import UUID

import pytest

from fastllm_shared.ids import IdSource, has_uuid_shape, uuid7, uuid7_text

NOW_NS = 1_796_000_000_123_456_789


def _clock() -> int:
    return NOW_NS


def test_ids_are_version_7_of_their_moment() -> None:
    source = IdSource(_clock)
    for found in (uuid7(_clock), UUID(uuid7_text(_clock)), *(UUID(source.text()) for _ in range(1_000))):
        assert found.version == 7
        assert found.variant == "specified in RFC 4122"
        assert found.int >> 80 == NOW_NS // 1_000_000


def test_ids_do_not_repeat_and_are_in_canonical_form() -> None:
    source = IdSource()
    texts = [source.text() for _ in range(5_000)] + [uuid7_text() for _ in range(100)]
    assert len(set(texts)) == len(texts)
    assert all(text == str(UUID(text)) for text in texts)
    tokens = [source.token() for _ in range(5_000)]
    assert len(set(tokens)) == len(tokens)
    assert {len(token) for token in tokens} == {32}


def test_every_random_bit_of_an_id_takes_both_values() -> None:
    source = IdSource(_clock)
    zeros = ones = 0
    for _ in range(300):
        value = UUID(source.text()).int
        ones |= value
        zeros |= ~value
    fixed = (0xFFFF_FFFF_FFFF << 80) | (0xF << 76) | (0b11 << 62)
    assert (ones & zeros & (2**128 - 1)) | fixed == 2**128 - 1


@pytest.mark.parametrize(
    ("text", "shaped"),
    [
        ("01a22df0-09cb-74e5-be28-dc2c9f5de861", True),
        ("01A22DF0-09CB-74E5-BE28-DC2C9F5DE861", True),
        ("01a22df0-09cb-74e5-be28-dc2c9f5de86", False),
        ("01a22df009cb74e5be28dc2c9f5de861", False),
        ("assistant", False),
        ("", False),
    ],
)
def test_what_has_the_shape_of_an_id(text: str, shaped: bool) -> None:
    assert has_uuid_shape(text) is shaped
