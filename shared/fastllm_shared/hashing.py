"""Stable hashing: the same numbers on every replica, in every process, on every machine. Pure."""

from __future__ import annotations

import math
from hashlib import blake2b
from typing import Final

_MASK: Final = 2**64 - 1


def stable_hash(*parts: bytes) -> int:
    """64 bits that are the same on every replica. Parts are kept apart."""
    digest = blake2b(digest_size=8)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return int.from_bytes(digest.digest(), "big")


def seed_of(name: str) -> int:
    """What hashing knows a name by."""
    return stable_hash(name.encode())


def mix(key: int, seed: int) -> int:
    """64 well-mixed bits of the two (the finaliser of SplitMix64, by Steele, Lea and Flood)."""
    mixed = (key ^ seed) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return mixed ^ (mixed >> 31)


def score(key: int, seed: int, weight: float) -> float:
    """Rendezvous score: whoever has the highest for a key owns it, in proportion to the weights."""
    if weight <= 0:
        return -math.inf
    # 52 bits and a half: never 0 and never 1, both exactly representable.
    return -weight / math.log(((mix(key, seed) >> 12) + 0.5) / 2**52)
