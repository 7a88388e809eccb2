"""Upstream credentials at rest: AES-256-GCM under a keyring.

A sealed value is text: `v1.<key id>.<base64 of nonce and ciphertext>`. It is bound to its place (table,
column, row), so that a value copied to another row does not open there. The first key of the ring seals,
every key opens; a key's id is the start of its SHA-256, which tells keys apart and nothing about them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from collections.abc import Sequence
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 32
_FORMAT = "v1"
_NONCE_BYTES = 12
_ID_CHARACTERS = 8


class KeyringError(ValueError):
    """`FASTLLM_ENCRYPTION_KEY` is not usable; the text says what is wrong and never shows a key."""


class Undecryptable(Exception):
    """A sealed value does not open: its key is not in the ring, or it was damaged or moved."""


class Place(str):
    """Where a sealed value lives; part of what is authenticated."""

    __slots__ = ()

    @classmethod
    def of(cls, table: str, column: str, row: UUID) -> Place:
        return cls(f"fastllm:{table}.{column}:{row}")


class Keyring:
    """Seals with its first key, opens with all of them."""

    __slots__ = ("_ciphers", "key_ids")

    def __init__(self, keys: Sequence[bytes]) -> None:
        if not keys:
            raise KeyringError("no encryption key")
        if any(len(key) != KEY_BYTES for key in keys):
            raise KeyringError(f"an encryption key is {KEY_BYTES} bytes long")
        self._ciphers = {_id_of(key): AESGCM(key) for key in keys}
        self.key_ids = tuple(self._ciphers)

    @classmethod
    def parse(cls, text: str) -> Keyring:
        """The keyring that `text` spells: keys of 64 hexadecimal digits, separated by commas."""
        keys = []
        for number, part in enumerate(text.split(","), 1):
            digits = part.strip()
            if len(digits) != 2 * KEY_BYTES:
                raise KeyringError(
                    f"key {number} must be {2 * KEY_BYTES} hexadecimal digits, but has {len(digits)}"
                )
            try:
                keys.append(bytes.fromhex(digits))
            except ValueError:
                raise KeyringError(f"key {number} has characters that are no hexadecimal digits") from None
        return cls(keys)

    def seal(self, plain: str, place: Place) -> str:
        """`plain` encrypted for `place`."""
        key_id = self.key_ids[0]
        nonce = os.urandom(_NONCE_BYTES)
        sealed = self._ciphers[key_id].encrypt(nonce, plain.encode(), _authenticated(key_id, place))
        return f"{_FORMAT}.{key_id}.{base64.b64encode(nonce + sealed).decode()}"

    def open(self, sealed: str, place: Place) -> str:
        """What was sealed for `place`; raises `Undecryptable`."""
        key_id = self.key_id_of(sealed)
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            raise Undecryptable(f"sealed with key {key_id}, which is not in the keyring")
        try:
            whole = base64.b64decode(sealed.rpartition(".")[2], validate=True)
            plain = cipher.decrypt(whole[:_NONCE_BYTES], whole[_NONCE_BYTES:], _authenticated(key_id, place))
            return plain.decode()
        except (InvalidTag, binascii.Error, ValueError):
            raise Undecryptable(f"sealed with key {key_id}, but damaged or moved from its row") from None

    def key_id_of(self, sealed: str) -> str:
        """The id of the key that sealed a value; raises `Undecryptable` for what is no such value."""
        parts = sealed.split(".")
        if len(parts) != 3 or parts[0] != _FORMAT:
            raise Undecryptable("not a sealed value")
        return parts[1]

    def __repr__(self) -> str:
        return f"Keyring({', '.join(self.key_ids)})"


def _id_of(key: bytes) -> str:
    return hashlib.sha256(b"fastllm key id" + key).hexdigest()[:_ID_CHARACTERS]


def _authenticated(key_id: str, place: Place) -> bytes:
    return f"{_FORMAT}.{key_id}.{place}".encode()
