"""What a client is told when it does not get an answer from a backend.

    Refused                   an answer of our own: status, code, message, param, extra headers
    UpstreamError             an attempt that failed (never reaches a client as such; `forward` decides)
    ├── ConnectFailed         no connection: refused, name, tls, address not allowed
    ├── ConnectionReset       the backend closed or reset it; `received` counts what had come of its answer
    ├── BadResponse           what came is not a response we accept
    └── UpstreamTimeout       not connected, nothing taken, no head, no first byte, or a long pause

Bodies are OpenAI's shape with all four keys, or Anthropic's on its endpoints, rendered by `refusals`.
"""

from __future__ import annotations

from typing import Literal

from fastllm_shared.health import EjectionReason


class Refused(Exception):
    """The one exception that stages raise to end a request with an answer of ours."""

    def __init__(
        self,
        status: int,
        code: str | None,
        message: str,
        *,
        param: str | None = None,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.headers = headers


class UpstreamError(Exception):
    """An attempt that failed. `reason` is the word for logs and ejections."""

    reason: EjectionReason = "reset"


class ConnectFailed(UpstreamError):
    """`cause` is for the log: `refused`, `name`, `tls`, `address`."""

    reason: EjectionReason = "refused"

    def __init__(self, cause: Literal["refused", "name", "tls", "address"], detail: str) -> None:
        super().__init__(f"{cause}: {detail}")
        self.cause = cause
        self.detail = detail


class ConnectionReset(UpstreamError):
    """`received` counts the bytes of this response that had come before the connection went. `unsent`: a
    part of the request was still waiting to leave, so that no engine has all of it. `taken`: the backend
    closed in order when it had taken all of the request; `False`: before that; `None`: who knows."""

    reason: EjectionReason = "reset"

    def __init__(self, detail: str, *, received: int = 0, unsent: bool = False) -> None:
        super().__init__(detail)
        self.received = received
        self.unsent = unsent
        self.taken: bool | None = None


class BadResponse(UpstreamError):
    reason: EjectionReason = "reset"


class UpstreamTimeout(UpstreamError):
    """`phase` says what did not come in time; `send`: the backend took no more of the request."""

    reason: EjectionReason = "timeout"

    def __init__(
        self, phase: Literal["connect", "send", "head", "first_byte", "idle"], seconds: float
    ) -> None:
        missing = "more of the request taken" if phase == "send" else phase
        super().__init__(f"no {missing} within {seconds:g} s")
        self.phase = phase
