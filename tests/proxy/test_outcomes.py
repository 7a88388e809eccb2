from __future__ import annotations

import pytest

from fastllm_proxy.errors import BadResponse, ConnectFailed, ConnectionReset, Refused, UpstreamTimeout
from fastllm_proxy.outcomes import Answer, Failure, Kind, Outcomes, failure_of

BUSY = Answer(429, b"", b"slow down")
ILL = Answer(500, b"", b"ouch")


def outcomes(*failures: Failure, retry_on_timeout: bool = False) -> Outcomes:
    made = Outcomes(retry_on_timeout=retry_on_timeout)
    for failure in failures:
        made.add(failure)
    return made


def of(kind: Kind, answer: Answer | None = None) -> Failure:
    return Failure(kind, "why", answer)


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
            UpstreamTimeout("head", 5),
            UpstreamTimeout("first_byte", 5),
            UpstreamTimeout("idle", 5),
            ConnectionReset("x"),
            BadResponse("x"),
        )
    ]
    assert kinds == ["unreachable", "unreachable", "timeout", "timeout", "timeout", "broken", "broken"]


def test_the_last_answer_that_was_no_rejection_decides() -> None:
    made = outcomes(of("answered", ILL), of("busy", BUSY), of("rejected"), of("unreachable"))
    assert made.decide("assistant") is BUSY


def test_only_rejections_and_only_silence() -> None:
    assert refused(outcomes(of("rejected"), of("rejected"))) == (502, "upstream_rejected")
    assert refused(outcomes(of("unreachable"))) == (502, "upstream_unavailable")
    assert refused(outcomes(of("unreachable"), of("broken"))) == (502, "upstream_unavailable")
    assert refused(outcomes(of("rejected"), of("unreachable"))) == (502, "upstream_unavailable")


def test_a_timeout_is_told_as_one_and_not_to_be_repeated() -> None:
    with pytest.raises(Refused) as caught:
        outcomes(of("unreachable"), of("timeout")).decide("assistant")
    assert (caught.value.status, caught.value.code) == (504, "upstream_timeout")
    assert caught.value.headers == (("x-should-retry", "false"),)
    assert refused(outcomes(of("answered", ILL), of("timeout"))) == (504, "upstream_timeout")


def test_an_answer_after_a_timeout_decides() -> None:
    made = outcomes(of("timeout"), of("answered", ILL), retry_on_timeout=True)
    assert made.decide("assistant") is ILL


def test_what_may_have_begun_elsewhere_is_sent_once_more_at_most() -> None:
    assert outcomes(of("broken")).may_retry()
    assert not outcomes(of("broken"), of("unreachable"), of("broken")).may_retry()
    assert not outcomes(of("timeout")).may_retry()
    assert outcomes(of("timeout"), retry_on_timeout=True).may_retry()
    assert not outcomes(of("timeout"), of("timeout"), retry_on_timeout=True).may_retry()
    assert not outcomes(of("timeout"), of("answered", ILL), retry_on_timeout=True).may_retry()


def test_harmless_failures_may_be_retried() -> None:
    for kind in ("unreachable", "rejected", "answered", "busy"):
        assert outcomes(of(kind), of(kind), of(kind)).may_retry()
