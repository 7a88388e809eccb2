"""How many retries a replica makes at one time."""

from __future__ import annotations

from typing import Final

MIN_RETRIES: Final = 3
RETRIED_SHARE: Final = 0.2


class RetryBudget:
    """Retries at most a fifth of what is in flight, and at least 3, so that they cannot multiply an overload.

    `in_flight` counts requests that are being forwarded, `retrying` those of them beyond their first attempt.
    """

    __slots__ = ("in_flight", "retrying")

    def __init__(self) -> None:
        self.in_flight = 0
        self.retrying = 0

    def allows_another(self) -> bool:
        return self.retrying < max(MIN_RETRIES, self.in_flight * RETRIED_SHARE)
