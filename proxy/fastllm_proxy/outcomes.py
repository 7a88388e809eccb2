"""What became of the attempts of one request, and which of them the client hears of.

Failure     one attempt that did not answer the client
Outcomes    those of one request, in order; `decide` answers for all of them
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from fastllm_proxy.errors import ConnectFailed, ConnectionReset, Refused, UpstreamError, UpstreamTimeout

Kind = Literal["refused", "unreachable", "unsent", "broken", "odd", "timeout", "rejected", "answered", "busy"]
"""`refused`: no connection, and that at once (nobody listens, no such name, not allowed, no TLS).
`unreachable`: no connection in time. `unsent`: it broke, or took no more, before all of the request had left.
`broken`: reset or nonsense after that. `odd`: a status that is no answer. `timeout`: nothing, or nothing
more, after the request was sent. `rejected`: our credential or the model's name is refused. `answered`,
`busy`: an error of its own."""

_NOT_REACHED: Final = frozenset(("refused", "unreachable", "unsent"))
"""No engine has the whole request: none can have begun."""

_FREE: Final = frozenset(("refused", "rejected"))
"""Turned away at the door, at once: moving on multiplies nothing, so the retry budget does not count it."""

_TIMEOUTS: Final[dict[str, Kind]] = {"connect": "unreachable", "send": "unsent"}


class Answer(msgspec.Struct, frozen=True):
    """An error that a backend gave, kept until it is known whether another does better. `headers` are lines
    for the client."""

    status: int
    headers: bytes
    body: bytes


class ErrorEvent(UpstreamError):
    """The first event of a stream was an error. `answer` is what came so far."""

    def __init__(self, answer: Answer) -> None:
        super().__init__("the stream began with an error event")
        self.answer = answer


class Failure(msgspec.Struct, frozen=True):
    kind: Kind
    reason: str
    answer: Answer | None = None


def failure_of(error: UpstreamError) -> Failure:
    """Sorts an attempt's error."""
    if isinstance(error, ConnectFailed):
        return Failure("refused", str(error))
    if isinstance(error, UpstreamTimeout):
        return Failure(_TIMEOUTS.get(error.phase, "timeout"), str(error))
    if isinstance(error, ConnectionReset) and error.unsent:
        return Failure("unsent", str(error))
    return Failure("broken", str(error))


class Outcomes:
    """`may_retry` says whether a further attempt makes sense after the last one.

    An engine that was reset or fell silent may have begun the work: sending it on again and again would
    multiply it. Such a request reaches one more backend at most, whatever that one says. `_begun` is set from
    there on, `_final` once nothing may follow.
    """

    __slots__ = ("_answer", "_begun", "_final", "_kinds", "_retry_on_timeout", "last")

    def __init__(self, first: Failure, *, retry_on_timeout: bool) -> None:
        self._answer: Answer | None = None
        self._begun = False
        self._final = False
        self._kinds: set[Kind] = set()
        self._retry_on_timeout = retry_on_timeout
        self.last = first
        self.add(first)

    def add(self, failure: Failure) -> None:
        kind = failure.kind
        self.last = failure
        self._kinds.add(kind)
        if failure.answer is not None:
            self._answer = failure.answer
        if self._begun and kind not in _NOT_REACHED:
            self._final = True
        if kind == "timeout":
            self._begun = True
            self._final |= not self._retry_on_timeout
        elif kind == "broken":
            self._begun = True

    @property
    def may_retry(self) -> bool:
        return not self._final

    @property
    def moves_on_freely(self) -> bool:
        """Whether what follows the last attempt needs no room in the retry budget."""
        return self.last.kind in _FREE

    def decide(self, model: str) -> Answer:
        """The answer that reaches the client. Raises `Refused` when no backend gave one that it may see."""
        kinds = self._kinds
        if "timeout" in kinds and self.last.answer is None:
            raise Refused(
                504,
                "upstream_timeout",
                f"the backend of {model} did not answer in time",
                headers=(("x-should-retry", "false"),),
            )
        if self._answer is not None:
            return self._answer
        if kinds == {"rejected"}:
            raise Refused(502, "upstream_rejected", f"every backend of {model} refused the gateway's request")
        raise Refused(502, "upstream_unavailable", f"no healthy backend for {model}")
