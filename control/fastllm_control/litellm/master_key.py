"""Whether a master key is one that could be guessed."""

from __future__ import annotations

import math
from collections import Counter

SHORTEST = 24
LEAST_BITS = 80.0
_GUESSED = (
    "1234",
    "test",
    "password",
    "master",
    "admin",
    "litellm",
    "changeme",
    "secret",
    "example",
    "dummy",
)


def weakness(key: str) -> str | None:
    """Why it is weak, as a clause; `None` when it is not."""
    body = key.removeprefix("sk-")
    if len(key) < SHORTEST:
        return f"it has fewer than {SHORTEST} characters"
    if any(word in body.lower() for word in _GUESSED) and len(body) < 2 * SHORTEST:
        return "it contains a word that is tried first"
    if entropy_bits(body) < LEAST_BITS:
        return "its characters repeat: it could be guessed"
    return None


def entropy_bits(text: str) -> float:
    """How many bits its characters carry, judged by how often each occurs."""
    counts = Counter(text)
    return -sum(count * math.log2(count / len(text)) for count in counts.values())
