from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from fastllm_shared.turns import LISTS, Turns


def take(turns: Turns, names: str, *weights: int, times: int = 1, of: str = "list") -> str:
    shares = weights or (1,) * len(names)
    return "".join(names[turns.take(of, names, shares)] for _ in range(times))


def test_everyone_in_turn() -> None:
    assert take(Turns(), "abc", times=7) == "abcabca"


def test_weights_are_evenly_spread() -> None:
    assert take(Turns(), "ab", 2, 1, times=6) == "abaaba"


@given(st.lists(st.integers(1, 100), min_size=1, max_size=8))
def test_after_a_whole_round_everyone_has_had_what_the_weight_says(weights: list[int]) -> None:
    turns, names = Turns(), [str(n) for n in range(len(weights))]
    counts = Counter(turns.take("list", names, weights) for _ in range(sum(weights)))
    assert all(abs(counts[at] - weight) <= 1 for at, weight in enumerate(weights))


def test_lists_have_turns_of_their_own_and_go_on_where_they_were() -> None:
    turns = Turns()
    assert take(turns, "abc", of="x") + take(turns, "abc", of="y") + take(turns, "abc", of="x") == "aab"


def test_who_was_away_makes_up_for_nothing_and_who_is_new_is_not_flooded() -> None:
    turns = Turns()
    take(turns, "abc", times=3)
    assert set(take(turns, "ab", times=300)) == {"a", "b"}
    back = take(turns, "abc", times=6)
    assert Counter(back) == {"a": 2, "b": 2, "c": 2}
    assert Counter(take(turns, "abcd", times=8)) == {"a": 2, "b": 2, "c": 2, "d": 2}


def test_what_is_remembered_is_bounded() -> None:
    turns = Turns()
    for number in range(LISTS + 5):
        turns.take(f"list-{number}", ["a", "b"], [1, 1])
    assert len(turns._lists) == LISTS
    for number in range(1000):
        turns.take("list", [f"m{number}", f"m{number + 1}"], [1, 1])
    assert len(turns._lists["list"].done) < 20
