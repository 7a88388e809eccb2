from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastllm_control.secrets import Keyring, KeyringError, Place, Undecryptable
from fastllm_shared.ids import uuid7

OLD, NEW = "ab" * 32, "cd" * 32
PLACE = Place.of("providers", "credential", uuid7())


@given(st.text())
def test_opens_what_it_sealed(plain: str) -> None:
    ring = Keyring.parse(NEW)
    assert ring.open(ring.seal(plain, PLACE), PLACE) == plain


def test_a_sealed_value_shows_its_key_id_and_no_secret_and_never_repeats() -> None:
    ring = Keyring.parse(NEW)
    first, second = ring.seal("hunter2", PLACE), ring.seal("hunter2", PLACE)
    assert first != second
    assert first.split(".")[:2] == ["v1", ring.key_ids[0]]
    assert b"hunter2" not in base64.b64decode(first.split(".")[2])


def test_first_key_seals_and_every_key_opens() -> None:
    before = Keyring.parse(OLD)
    rotating = Keyring.parse(f"{NEW}, {OLD}")
    after = Keyring.parse(NEW)
    assert rotating.open(before.seal("x", PLACE), PLACE) == "x"
    assert after.open(rotating.seal("x", PLACE), PLACE) == "x"
    with pytest.raises(Undecryptable, match=f"key {before.key_ids[0]}, which is not in the keyring"):
        after.open(before.seal("x", PLACE), PLACE)


def test_a_value_moved_to_another_row_or_field_does_not_open() -> None:
    ring = Keyring.parse(NEW)
    row = uuid7()
    sealed = ring.seal("x", Place.of("providers", "credential", row))
    for place in (
        Place.of("providers", "credential", uuid7()),
        Place.of("providers", "extra_headers", row),
        Place.of("webhooks", "credential", row),
    ):
        with pytest.raises(Undecryptable, match="damaged or moved"):
            ring.open(sealed, place)


@pytest.mark.parametrize("position", [0, 11, 12, 20, -1])
def test_a_damaged_value_does_not_open(position: int) -> None:
    ring = Keyring.parse(NEW)
    head, _, body = ring.seal("a credential", PLACE).rpartition(".")
    whole = bytearray(base64.b64decode(body))
    whole[position] ^= 1
    with pytest.raises(Undecryptable, match="damaged or moved"):
        ring.open(f"{head}.{base64.b64encode(whole).decode()}", PLACE)


@pytest.mark.parametrize("text", ["", "hunter2", "v1.x", "v2.aa.bb", "v1.aa.bb.cc"])
def test_what_was_never_sealed_does_not_open(text: str) -> None:
    with pytest.raises(Undecryptable, match="not a sealed value"):
        Keyring.parse(NEW).open(text, PLACE)


@pytest.mark.parametrize("body", ["", "!!!", "AAAA", "é"])
def test_a_sealed_value_with_a_broken_body_does_not_open(body: str) -> None:
    ring = Keyring.parse(NEW)
    with pytest.raises(Undecryptable, match="damaged or moved"):
        ring.open(f"v1.{ring.key_ids[0]}.{body}", PLACE)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "key 1 must be 64 hexadecimal digits, but has 0"),
        ("ab" * 31, "key 1 must be 64 hexadecimal digits, but has 62"),
        (f"{NEW},", "key 2 must be 64 hexadecimal digits, but has 0"),
        (f"{NEW},{'zz' * 32}", "key 2 has characters that are no hexadecimal digits"),
        ("é" * 64, "key 1 has characters that are no hexadecimal digits"),
    ],
)
def test_a_bad_keyring_is_refused_without_showing_it(text: str, problem: str) -> None:
    with pytest.raises(KeyringError) as refused:
        Keyring.parse(text)
    assert str(refused.value) == problem


def test_a_keyring_needs_whole_keys() -> None:
    with pytest.raises(KeyringError, match="no encryption key"):
        Keyring([])
    with pytest.raises(KeyringError, match="32 bytes"):
        Keyring([b"short"])


def test_the_keyring_does_not_show_itself() -> None:
    shown = repr(Keyring.parse(f"{NEW},{OLD}"))
    assert NEW not in shown
    assert OLD not in shown
