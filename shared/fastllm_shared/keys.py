"""API keys: how one is made, and the digest that is all that is ever stored or published of it."""

from __future__ import annotations

import hashlib
import secrets

KEY_PREFIX = "sk-"
SHOWN_CHARACTERS = 11
"""How much of a key is kept to recognise it by: `sk-` and eight characters (48 of its 256 bits)."""


def new_key() -> str:
    """A fresh key of 256 random bits, as URL-safe text."""
    return KEY_PREFIX + secrets.token_urlsafe(32)


def digest_of(key: str | bytes) -> bytes:
    """SHA-256 of the key, 32 bytes. A random key of 256 bits needs no salt and no slow hash."""
    return hashlib.sha256(key if isinstance(key, bytes) else key.encode()).digest()


def shown_prefix(key: str) -> str:
    """The part of a key that lists, logs and usage rows may show."""
    return key[:SHOWN_CHARACTERS]
