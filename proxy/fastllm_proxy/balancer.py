"""Which backend of a target is tried next, and which target of a list first: `fastllm_shared.policies`, with
this process's chance and clock. One per replica.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

from fastllm_shared.policies import Chooser


class Balancer(Chooser):
    """`draw` picks one of a sequence at random."""

    __slots__ = ()

    def __init__(
        self,
        draw: Callable[[Sequence[int]], int] = random.choice,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(draw, clock)
