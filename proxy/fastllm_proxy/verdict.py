"""What an answer's status means for the attempt that got it."""

from __future__ import annotations

import email.utils
import time
from typing import Final, Literal

from fastllm_proxy.client_headers import RawHeaders
from fastllm_proxy.wire import header

COOL_SECONDS: Final = 5.0
MAX_COOL_SECONDS: Final = 60.0
REJECTED_COOL_SECONDS: Final = 30.0
"""After a rejection of our credential or model name: nothing mends that within seconds."""

Verdict = Literal["final", "rejected", "missing?", "failed", "busy", "odd"]
"""`final`: the client's answer. `rejected`: the backend refuses *us*. `missing?`: it does if its text says
that it has no such model (`rejections`). `failed`: ill, another may do better. `busy`: like failed, but no
ill health: it cools. `odd`: not an answer."""

_REJECTED: Final = frozenset((401, 402, 403))
_OVERLOADED: Final = 529


def judge(status: int, headers: RawHeaders) -> Verdict:
    if status < 300:
        return "final"
    if status < 400:
        return "odd"
    if status in _REJECTED:
        return "rejected"
    if status == 404:
        return "missing?"
    if status in (429, _OVERLOADED) or (status == 503 and header(headers, b"retry-after") is not None):
        return "busy"
    return "final" if status < 500 else "failed"


def cool_seconds(headers: RawHeaders) -> float:
    """How long a busy backend wants to be left alone, within reason."""
    text = header(headers, b"retry-after")
    wanted = None if text is None else _retry_after(text.decode("latin-1").strip())
    return COOL_SECONDS if wanted is None else min(max(wanted, 0.0), MAX_COOL_SECONDS)


def _retry_after(text: str) -> float | None:
    """Seconds; the header holds them or an HTTP date."""
    if text.replace(".", "", 1).isdecimal() and text.isascii():
        return float(text)
    try:
        return email.utils.parsedate_to_datetime(text).timestamp() - time.time()
    except (ValueError, TypeError, OverflowError, OSError):
        return None
