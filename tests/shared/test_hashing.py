from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fastllm_shared.hashing import mix, score, seed_of, stable_hash

_KEYS = st.integers(0, 2**64 - 1)


def test_hashes_are_the_same_on_every_replica() -> None:
    """Fixed figures: a change of them would move every conversation away from its cache."""
    assert stable_hash(b"a", b"bc") == 15191779413256427671
    assert seed_of("backend-1") == 14346540756414430653
    assert mix(1, 2) == 2185194620014831856


def test_parts_are_kept_apart() -> None:
    assert stable_hash(b"a", b"bc") != stable_hash(b"ab", b"c") != stable_hash(b"abc")


@given(_KEYS, _KEYS, st.floats(0.001, 1e6))
def test_scores_are_positive_and_grow_with_weight(key: int, seed: int, weight: float) -> None:
    assert 0 <= mix(key, seed) < 2**64
    assert 0 < score(key, seed, weight) < score(key, seed, weight * 2)


def test_nothing_falls_to_a_weight_of_zero() -> None:
    assert score(1, 2, 0) < score(1, 2, 0.0001)
