from __future__ import annotations

from fastllm_proxy.backends import InFlight
from fastllm_shared.health import Ejection
from tests.proxy.parts import live_backend


def test_in_flight_is_counted_once_whatever_happens() -> None:
    backend = live_backend(1)
    first, second = InFlight(backend), InFlight(backend)
    assert backend.inflight == 2
    first.release()
    first.release()
    assert backend.inflight == 1
    second.release()
    assert backend.inflight == 0


def test_health_and_what_hashing_knows_it_by() -> None:
    backend, other = live_backend(1), live_backend(2)
    other.ejection = Ejection("probe", "timeout")
    assert (backend.healthy, other.healthy) == (True, False)
    assert backend.seed == live_backend(1).seed != other.seed


def test_names_of_the_headers_that_it_sets() -> None:
    backend = live_backend(1, auth_header="X-Api-Key", extra_headers=(("X-Tenant", "1"),))
    assert backend.own_headers == {b"x-api-key", b"x-tenant"}
