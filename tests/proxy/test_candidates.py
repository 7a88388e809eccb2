"""Which backends may be tried, in which order, how often."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from fastllm_proxy.backends import Backend
from fastllm_proxy.balancer import Balancer
from fastllm_proxy.candidates import MAX_ATTEMPTS, Candidates
from fastllm_proxy.gate import Gates
from fastllm_proxy.view import Target
from fastllm_shared.health import Ejection, EjectionPath
from tests.proxy.parts import exchange, live_backend, target

NOW = 1000.0


class Full(Gates):
    """Gates of which some have no room."""

    __slots__ = ("_full",)

    def __init__(self, *full: Backend) -> None:
        self._full = full

    def has_room(self, backend: Backend) -> bool:
        return backend not in self._full


def tries(*chain: Target, max_retries: int = 2, gates: Gates | None = None) -> list[str]:
    candidates = Candidates(
        exchange(*chain), Balancer(random.Random(1).choice), gates or Gates(), max_retries, lambda: NOW
    )
    found = []
    while (backend := candidates.next()) is not None:
        found.append(backend.id)
    return found


def some(first: int, count: int) -> list[Backend]:
    return [live_backend(number) for number in range(first, first + count)]


def test_targets_in_order_and_never_a_backend_twice() -> None:
    shared, other = live_backend(1), live_backend(2)
    assert tries(target("a", shared), target("b", shared, other)) == ["backend-1", "backend-2"]


def test_at_most_two_further_backends_of_a_target_and_four_in_all() -> None:
    found = tries(target("a", *some(1, 9)), target("b", *some(11, 9)))
    assert len(found) == MAX_ATTEMPTS == 4
    assert len(set(found)) == 4
    assert [int(name.split("-")[1]) < 10 for name in found] == [True, True, True, False]
    assert len(tries(target("a", *some(1, 9)), max_retries=0)) == 1


def test_what_is_out_is_passed_over() -> None:
    cooling, ejected, well = some(1, 3)
    cooling.cooling_until = NOW + 1
    ejected.ejection = Ejection("traffic", "status", until=None)
    assert tries(target("a", cooling, ejected, well)) == ["backend-3"]


def test_cooling_ends() -> None:
    cooled = live_backend(1)
    cooled.cooling_until = NOW
    assert tries(target("a", cooled)) == ["backend-1"]


def test_a_suspected_one_comes_last_when_the_chain_has_nothing_further() -> None:
    suspected, well, spare = some(1, 3)
    suspected.ejection = Ejection("probe", "timeout")
    assert tries(target("a", suspected, well), target("b", spare)) == ["backend-2", "backend-3", "backend-1"]


def test_when_all_are_out_they_are_tried_all_the_same_the_ejected_last() -> None:
    ejected, suspected, cooling = some(1, 3)
    ejected.ejection = Ejection("traffic", "status")
    suspected.ejection = Ejection("probe", "timeout")
    cooling.cooling_until = NOW + 9
    assert tries(target("a", ejected, suspected, cooling)) == ["backend-3", "backend-2", "backend-1"]
    assert tries(target("a", ejected), target("b", cooling)) == ["backend-3", "backend-1"]


def test_one_that_is_suspected_and_cools_waits_until_all_are_out() -> None:
    both, well, ejected = some(1, 3)
    both.ejection = Ejection("probe", "timeout")
    both.cooling_until = NOW + 9
    ejected.ejection = Ejection("traffic", "status")
    assert tries(target("a", both, well)) == ["backend-2"]
    assert tries(target("a", ejected, both)) == ["backend-1", "backend-3"]
    suspected = live_backend(4)
    suspected.ejection = Ejection("probe", "timeout")
    assert tries(target("a", both, suspected)) == ["backend-4", "backend-1"]


@given(
    st.lists(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 4)), max_size=5), max_size=4),
    st.integers(0, 3),
)
def test_no_chain_leads_to_a_fifth_attempt_or_to_the_same_backend_again(
    shape: list[list[tuple[int, int]]], max_retries: int
) -> None:
    """Targets list backends (which may stand in several of them) in any state."""
    backends = {number: live_backend(number) for number in range(1, 7)}
    for listed in shape:
        for number, state in listed:
            backends[number].cooling_until = NOW + 5 if state in (1, 3) else 0.0
            path: EjectionPath = "traffic" if state == 4 else "probe"
            backends[number].ejection = Ejection(path, "timeout") if state > 1 else None
    chain = [
        target(f"t{at}", *(backends[number] for number in dict.fromkeys(n for n, _ in listed)))
        for at, listed in enumerate(shape)
    ]
    found = tries(*chain, max_retries=max_retries)
    there = {number for listed in shape for number, _ in listed}
    assert len(found) == len(set(found)) <= min(4, len(there))
    assert bool(found) == bool(there)
    well = [n for n in there if backends[n].ejection is None and not backends[n].cooling_until]
    cooling = {f"backend-{n}" for n in there if backends[n].cooling_until}
    if well:
        assert not cooling & set(found)


def test_nothing_to_try() -> None:
    assert tries() == []
    assert tries(target("a"), target("b")) == []


def test_a_full_gate_sends_to_an_untried_sibling_first() -> None:
    full, free = some(1, 2)
    assert tries(target("a", full, free), gates=Full(full)) == ["backend-2", "backend-1"]
    assert tries(target("a", full, free), gates=Full(full, free)).count("backend-1") == 1


def test_only_backends_of_the_dialect() -> None:
    plain, both = live_backend(1, protocol="openai"), live_backend(2)
    mixed = target("a", plain, both)
    mixed.by_dialect["anthropic"] = mixed.members[1:]
    made = exchange(mixed, path="/messages")
    candidates = Candidates(made, Balancer(), Gates(), 2, lambda: NOW)
    assert candidates.next() is both
    assert candidates.next() is None
