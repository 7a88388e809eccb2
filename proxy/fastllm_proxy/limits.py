"""Rate, token and concurrency limits, and budgets, per principal. Empty so far: everything passes.

`admit` will check all of them before charging any, and reserve prompt estimate + requested generation; what
it gives out is settled to the actual figures exactly once, on every path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastllm_proxy.exchange import Exchange, TokenUsage


class Reservation:
    """What one request holds of its principal's limits."""

    __slots__ = ()

    def settle(self, usage: TokenUsage | None) -> None:
        """Turns the reservation into the actual figures; unknown ones keep the estimate. Idempotent."""

    def release(self) -> None:
        """Gives all of it back: nothing was generated. Idempotent."""


class Limits:
    __slots__ = ("_free",)

    def __init__(self) -> None:
        self._free = Reservation()

    def admit(self, exchange: Exchange) -> None:
        """Reserves for one request: fills `reservation`. Will raise `Refused` 402 and 429."""
        exchange.reservation = self._free
