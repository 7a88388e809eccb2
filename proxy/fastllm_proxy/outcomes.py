"""What became of the attempts of one request, and which of them the client hears of.

Failure     one attempt that did not answer the client
Outcomes    those of one request, in order; `decide` answers for all of them
"""

from __future__ import annotations

from typing import Literal

import msgspec

from fastllm_proxy.errors import ConnectFailed, Refused, UpstreamError, UpstreamTimeout

Kind = Literal["unreachable", "broken", "timeout", "rejected", "answered", "busy"]
"""`unreachable`: no connection. `broken`: reset or nonsense after the request was sent. `timeout`: no first
byte after it was sent. `rejected`: our credential or the model's name is refused. `answered`, `busy`: an
error of its own."""


class Answer(msgspec.Struct, frozen=True):
    """An error that a backend gave, kept until it is known whether another does better. `headers` are lines
    for the client."""

    status: int
    headers: bytes
    body: bytes


class Failure(msgspec.Struct, frozen=True):
    kind: Kind
    reason: str
    answer: Answer | None = None


def failure_of(error: UpstreamError) -> Failure:
    """Sorts an attempt's error."""
    if isinstance(error, ConnectFailed):
        return Failure("unreachable", str(error))
    if isinstance(error, UpstreamTimeout):
        return Failure("unreachable" if error.phase == "connect" else "timeout", str(error))
    return Failure("broken", str(error))


class Outcomes:
    """`may_retry` says whether a further attempt makes sense after the last one."""

    __slots__ = ("_answer", "_failures", "_retry_on_timeout")

    def __init__(self, *, retry_on_timeout: bool) -> None:
        self._failures: list[Failure] = []
        self._answer: Answer | None = None
        self._retry_on_timeout = retry_on_timeout

    def add(self, failure: Failure) -> None:
        self._failures.append(failure)
        if failure.answer is not None:
            self._answer = failure.answer

    def may_retry(self) -> bool:
        """An engine that was reset or fell silent may have begun the work: sending it on again and again
        would multiply it. Such a request gets one more backend at most."""
        kind = self._failures[-1].kind
        if kind == "timeout":
            return self._retry_on_timeout and self._count("timeout") == 1
        return self._count("broken") < 2 and not self._count("timeout")

    @property
    def last_kind(self) -> Kind:
        return self._failures[-1].kind

    def decide(self, model: str) -> Answer:
        """The answer that reaches the client. Raises `Refused` when no backend gave one that it may see."""
        kinds = {failure.kind for failure in self._failures}
        if "timeout" in kinds and self._failures[-1].answer is None:
            raise Refused(
                504,
                "upstream_timeout",
                f"the backend of {model} did not begin to answer in time",
                headers=(("x-should-retry", "false"),),
            )
        if self._answer is not None:
            return self._answer
        if kinds == {"rejected"}:
            raise Refused(502, "upstream_rejected", f"every backend of {model} refused the gateway's request")
        raise Refused(502, "upstream_unavailable", f"no healthy backend for {model}")

    def _count(self, kind: Kind) -> int:
        return sum(failure.kind == kind for failure in self._failures)
