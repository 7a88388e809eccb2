"""Whose turn it is: what `round-robin` remembers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

LISTS: Final = 10_000
"""How many lists are remembered; the one that was used longest ago is forgotten first."""


class _List:
    """`reached`: where the round stands. `done`: up to where each member has had its turns."""

    __slots__ = ("done", "reached")

    def __init__(self) -> None:
        self.reached = 0.0
        self.done: dict[str, float] = {}


class Turns:
    """Turns in proportion to weights, evenly spread: of weights 2 and 1 it is a, b, a and not a, a, b. Lists
    are known by name, so that they go on where they were after the configuration has changed; who was away
    comes back where the round stands and makes up for nothing."""

    __slots__ = ("_lists",)

    def __init__(self) -> None:
        self._lists: OrderedDict[str, _List] = OrderedDict()

    def take(self, name: str, members: Sequence[str], weights: Sequence[int]) -> int:
        """The index of the member of the list `name` whose turn it is, which is over with this. Weights must
        be positive."""
        found = self._lists.get(name)
        if found is None:
            found = self._lists[name] = _List()
            if len(self._lists) > LISTS:
                self._lists.popitem(last=False)
        else:
            self._lists.move_to_end(name)
        done, reached = found.done, found.reached
        starts = [max(reached, done.get(member, 0.0)) for member in members]
        start = min(starts)
        chosen = starts.index(start)
        found.reached = start
        done[members[chosen]] = start + 1 / weights[chosen]
        if len(done) > 2 * len(members) + 8:
            found.done = {member: done[member] for member in members if member in done}
        return chosen
