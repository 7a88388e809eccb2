from __future__ import annotations

from tests.proxy.parts import exchange


def test_nothing_is_known_before_a_stage_has_found_it_out() -> None:
    fresh = exchange()
    assert (fresh.attempts, fresh.status, fresh.hops) == (0, 0, 0)
    for unknown in (
        "backend",
        "sent_at",
        "first_byte_at",
        "mirror",
        "usage",
        "refusal",
        "code",
        "affinity",
        "rule",
    ):
        assert getattr(fresh, unknown) is None
