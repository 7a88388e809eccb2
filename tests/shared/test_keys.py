"""Keys, their digests, and what may be shown of them."""

from __future__ import annotations

import re

import pytest

from fastllm_shared.keys import SHOWN_CHARACTERS, digest_of, new_key, shown_prefix


def test_keys_are_fresh_long_and_fit_a_header() -> None:
    made = {new_key() for _ in range(1000)}
    assert len(made) == 1000
    assert all(re.fullmatch(r"sk-[A-Za-z0-9_-]{43}", key) for key in made)


def test_the_digest_is_the_same_for_text_and_for_the_bytes_of_a_header() -> None:
    key = new_key()
    assert digest_of(key) == digest_of(key.encode())
    assert len(digest_of(key)) == 32
    assert digest_of(key) != digest_of(key + " ")
    # A digest that is stored has to be found again by every later release.
    assert digest_of("sk-abc").hex() == "1460db1b6902f8b1fc2a40d9381a24d0fd22c3bc1b2c6f999c521da73776fbe0"


@pytest.mark.parametrize("key", [b"\xff\xfe", b"", "", "ключ"])
def test_whatever_is_given_has_a_digest(key: str | bytes) -> None:
    assert len(digest_of(key)) == 32


def test_what_is_shown_leaves_enough_unknown() -> None:
    key = new_key()
    shown = shown_prefix(key)
    assert key.startswith(shown)
    assert len(shown) == SHOWN_CHARACTERS == 11
    assert len(key) - len(shown) >= 35  # more than 200 bits
