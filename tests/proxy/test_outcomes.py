"""Which attempts may be followed by another, and which of them decides."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastllm_proxy.errors import BadResponse, ConnectFailed, ConnectionReset, Refused, UpstreamTimeout
from fastllm_proxy.outcomes import Answer, Failure, Kind, Outcomes, failure_of

BUSY = Answer(429, b"", b"slow down")
ILL = Answer(500, b"", b"ouch")
ANSWERS = {"answered": ILL, "busy": BUSY}


def outcomes(*kinds: Kind, retry_on_timeout: bool = False) -> Outcomes:
    first, *others = [Failure(kind, "why", ANSWERS.get(kind)) for kind in kinds]
    made = Outcomes(first, retry_on_timeout=retry_on_timeout)
    for failure in others:
        made.add(failure)
    return made


def refused(made: Outcomes) -> tuple[int, str | None]:
    with pytest.raises(Refused) as caught:
        made.decide("assistant")
    return caught.value.status, caught.value.code


def test_errors_are_sorted() -> None:
    kinds = [
        failure_of(error).kind
        for error in (
            ConnectFailed("refused", "x"),
            UpstreamTimeout("connect", 5),
            UpstreamTimeout("send", 5),
            UpstreamTimeout("head", 5),
            UpstreamTimeout("first_byte", 5),
            UpstreamTimeout("idle", 5),
            ConnectionReset("x"),
            ConnectionReset("x", unsent=True),
            BadResponse("x"),
        )
    ]
    expected = ["refused", "unreachable", "unsent", *["timeout"] * 3, "broken", "unsent", "broken"]
    assert kinds == expected


def test_the_last_answer_that_was_no_rejection_decides() -> None:
    made = outcomes("answered", "busy", "rejected", "refused")
    assert made.decide("assistant") is BUSY


def test_only_rejections_and_only_silence() -> None:
    assert refused(outcomes("rejected", "rejected")) == (502, "upstream_rejected")
    assert refused(outcomes("refused")) == (502, "upstream_unavailable")
    assert refused(outcomes("unreachable", "broken", "odd")) == (502, "upstream_unavailable")


def test_a_rejection_beside_one_that_could_not_be_reached_may_pass_again() -> None:
    assert refused(outcomes("rejected", "refused")) == (502, "upstream_unavailable")
    assert refused(outcomes("broken", "rejected")) == (502, "upstream_unavailable")


def test_a_timeout_is_told_as_one_and_not_to_be_repeated() -> None:
    with pytest.raises(Refused) as caught:
        outcomes("refused", "timeout").decide("assistant")
    assert (caught.value.status, caught.value.code) == (504, "upstream_timeout")
    assert caught.value.headers == (("x-should-retry", "false"),)
    assert refused(outcomes("answered", "timeout")) == (504, "upstream_timeout")
    assert refused(outcomes("timeout", "rejected", retry_on_timeout=True)) == (504, "upstream_timeout")


def test_an_answer_after_a_timeout_decides() -> None:
    assert outcomes("timeout", "answered", retry_on_timeout=True).decide("assistant") is ILL


def test_what_may_have_begun_elsewhere_reaches_one_more_at_most() -> None:
    assert outcomes("broken").may_retry
    assert outcomes("answered", "broken").may_retry
    for second in ("broken", "answered", "busy", "rejected", "odd", "timeout"):
        assert not outcomes("broken", second, retry_on_timeout=True).may_retry
        assert not outcomes("timeout", second, retry_on_timeout=True).may_retry
    assert not outcomes("timeout").may_retry
    assert outcomes("timeout", retry_on_timeout=True).may_retry


def test_one_that_was_not_reached_is_none_that_it_went_to() -> None:
    for second in ("refused", "unreachable", "unsent"):
        assert outcomes("broken", second).may_retry
        assert not outcomes("broken", second, "answered").may_retry


def test_harmless_failures_may_be_retried() -> None:
    for kind in ("refused", "unreachable", "unsent", "rejected", "answered", "busy", "odd"):
        assert outcomes(kind, kind, kind).may_retry


def test_what_costs_no_room_in_the_retry_budget() -> None:
    free = [kind for kind in get_args(Kind) if outcomes(kind).moves_on_freely]
    assert free == ["refused", "rejected"]


@given(st.lists(st.sampled_from(get_args(Kind)), min_size=1, max_size=6), st.booleans())
def test_whatever_fails_the_work_is_begun_twice_at_most(kinds: list[Kind], retry_on_timeout: bool) -> None:
    made: Outcomes | None = None
    seen: list[Kind] = []
    for kind in kinds:
        if made is None:
            made = Outcomes(Failure(kind, "", ANSWERS.get(kind)), retry_on_timeout=retry_on_timeout)
        elif made.may_retry:
            made.add(Failure(kind, "", ANSWERS.get(kind)))
        else:
            break
        seen.append(kind)
    assert made is not None
    assert sum(kind in ("broken", "timeout") for kind in seen) <= 2
    begun = next((at for at, kind in enumerate(seen) if kind in ("broken", "timeout")), len(seen))
    reached = [kind for kind in seen[begun + 1 :] if kind not in ("refused", "unreachable", "unsent")]
    assert len(reached) <= 1
    if not retry_on_timeout:
        assert "timeout" not in seen[:-1]
    if any(kind in ANSWERS for kind in seen) and ("timeout" not in seen or seen[-1] in ANSWERS):
        assert made.decide("assistant") in ANSWERS.values()
    elif "timeout" in seen:
        assert refused(made) == (504, "upstream_timeout")
    elif set(seen) == {"rejected"}:
        assert refused(made) == (502, "upstream_rejected")
    else:
        assert refused(made) == (502, "upstream_unavailable")
