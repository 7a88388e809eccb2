from __future__ import annotations

import email.utils
import time

import pytest

from fastllm_proxy.verdict import (
    COOL_SECONDS,
    MAX_COOL_SECONDS,
    Verdict,
    cool_seconds,
    judge,
)


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        (200, "final"),
        (204, "final"),
        (301, "odd"),
        (304, "odd"),
        (400, "final"),
        (401, "rejected"),
        (402, "rejected"),
        (403, "rejected"),
        (404, "missing?"),
        (413, "final"),
        (422, "final"),
        (429, "busy"),
        (500, "failed"),
        (502, "failed"),
        (503, "failed"),
        (529, "busy"),
    ],
)
def test_statuses(status: int, verdict: Verdict) -> None:
    assert judge(status, ()) == verdict


def test_503_with_a_date_is_busy() -> None:
    assert judge(503, ((b"retry-after", b"3"),)) == "busy"


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"3", 3.0),
        (b" 0.5", 0.5),
        (b"3600", MAX_COOL_SECONDS),
        (b"soon", COOL_SECONDS),
        (b"-1", COOL_SECONDS),
        (b"", COOL_SECONDS),
        (b"9" * 400, MAX_COOL_SECONDS),
        (b"Mon, 01 Jan 0001 00:00:00 -0000", 0.0),
        (b"Mon, 01 Jan 0001 00:00:00 +1400", 0.0),
    ],
)
def test_how_long_a_busy_backend_is_left_alone(value: bytes, seconds: float) -> None:
    assert cool_seconds(((b"retry-after", value),)) == seconds


def test_retry_after_as_a_date() -> None:
    date = email.utils.formatdate(time.time() + 20, usegmt=True).encode()
    assert 15 < cool_seconds(((b"retry-after", date),)) <= 20
    past = email.utils.formatdate(time.time() - 20, usegmt=True).encode()
    assert cool_seconds(((b"retry-after", past),)) == 0


def test_without_the_header() -> None:
    assert cool_seconds(()) == COOL_SECONDS
