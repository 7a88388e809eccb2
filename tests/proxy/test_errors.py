from __future__ import annotations

import pytest

from fastllm_proxy.errors import (
    BadResponse,
    ConnectFailed,
    ConnectionReset,
    Refused,
    UpstreamError,
    UpstreamTimeout,
)


def test_a_refusal_holds_what_the_client_is_told() -> None:
    refused = Refused(404, "model_not_found", "none", param="model", headers=(("a", "b"),))
    assert (refused.status, refused.code, refused.message, refused.param, refused.headers) == (
        404,
        "model_not_found",
        "none",
        "model",
        (("a", "b"),),
    )
    assert not isinstance(refused, UpstreamError)
    assert Refused(400, None, "x").headers == ()


@pytest.mark.parametrize(
    ("error", "reason", "text"),
    [
        (ConnectFailed("tls", "certificate expired"), "refused", "tls: certificate expired"),
        (ConnectionReset("closed", received=3), "reset", "closed"),
        (BadResponse("two lengths"), "reset", "two lengths"),
        (UpstreamTimeout("first_byte", 0.5), "timeout", "no first_byte within 0.5 s"),
    ],
)
def test_a_failed_attempt_says_why_for_log_and_ejection(error: UpstreamError, reason: str, text: str) -> None:
    assert isinstance(error, UpstreamError)
    assert error.reason == reason
    assert str(error) == text
