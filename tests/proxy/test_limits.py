from __future__ import annotations

from fastllm_proxy.limits import Limits
from tests.proxy.parts import exchange


def test_everything_passes_and_settles_any_number_of_times() -> None:
    limits = Limits()
    for _ in range(1000):
        made = exchange()
        limits.admit(made)
        reservation = made.reservation
        assert reservation is not None
        reservation.settle(None)
        reservation.settle(None)
        reservation.release()
