"""What the fake engine answers, as data: `Answer` says what, `plan` turns it into steps, `engine` plays them.

All durations are seconds. Sizes are bytes on the wire.
"""

from __future__ import annotations

import gzip
from typing import Any, Literal

import msgspec

Framing = Literal["length", "chunked", "eof"]
FaultKind = Literal["reset", "close", "half_close", "stall"]
FaultPhase = Literal["request", "mid_head", "body", "mid_body", "end", "idle"]

WORDS = ("Hello", " from", " the", " fake", " engine", ".")


class Fault(msgspec.Struct, frozen=True):
    """What goes wrong, and when.

    `request`: the request's head has come, its body is not read; `mid_head`: half the head has left; `body`:
    the head has left; `mid_body`: `after` pieces have left, the last of them by half if `split`; `end`:
    all but the last byte of the framing, or of the body; `idle`: the whole answer has left.
    A stall lasts until the peer closes.
    """

    kind: FaultKind
    at: FaultPhase = "request"
    after: int = 1
    split: bool = False


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One answer. With neither `body` nor `events` it is the path's usual one, from `replies`.

    `events`: pieces of a body, each in a chunk and a send of its own. `headers` come after the usual ones
    and replace those of the same name. `words` and `usage` shape the usual replies (`usage` `None`: none).
    """

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    events: tuple[bytes, ...] | None = None
    words: tuple[str, ...] = WORDS
    usage: dict[str, Any] | msgspec.UnsetType | None = msgspec.UNSET

    framing: Framing | None = None
    """`None`: `length` for a body, `chunked` for events."""
    gzip: bool = False
    close: bool = False
    """Says `Connection: close` and does so."""
    early: bool = False
    """Answers upon the request's head; its body is not read before the answer has left."""

    delay_to_head: float = 0.0
    delay_to_body: float = 0.0
    gap: float = 0.0
    """Between events."""
    bytes_per_send: int | None = None
    """Cuts everything into sends of this size, `gap` apart."""

    fault: Fault | None = None
    interim: tuple[int, ...] = ()
    """Statuses of responses before the real one (100, 103)."""
    declared_length: int | None = None
    """What `Content-Length` claims, whatever is sent."""
    chunk_size_error: int = 0
    """Added to what each chunk's size line claims."""
    trailers: tuple[tuple[str, str], ...] = ()
    trailing: bytes = b""
    """Sent right after the response."""
    raw: bytes | None = None
    """Sent instead of a response; pauses, faults `request` and `idle`, and `close` still hold."""


class Reply(msgspec.Struct, frozen=True):
    """A body with its type: whole, or in pieces."""

    content_type: str
    body: bytes | None = None
    events: tuple[bytes, ...] | None = None


class Send(msgspec.Struct, frozen=True):
    data: bytes


class Pause(msgspec.Struct, frozen=True):
    seconds: float


class Break(msgspec.Struct, frozen=True):
    kind: FaultKind


class Answered(msgspec.Struct, frozen=True):
    """The whole answer has left."""


Step = Send | Pause | Break | Answered

_REASONS = {
    100: "Continue",
    103: "Early Hints",
    200: "OK",
    204: "No Content",
    304: "Not Modified",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    429: "Too Many Requests",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


def plan(answer: Answer, reply: Reply, *, head_only: bool = False, keep_alive: bool = True) -> list[Step]:
    """The steps of an answer. `head_only`: the request was a HEAD; `keep_alive`: what it asked for."""
    steps = _steps(answer, reply, head_only, keep_alive)
    if not isinstance(steps[-1], Break):
        steps.append(Answered())
        if answer.fault is not None:
            steps.append(Break(answer.fault.kind))
        elif answer.close or not keep_alive or answer.framing == "eof":
            steps.append(Break("close"))
    if answer.bytes_per_send is None:
        return steps
    return [part for step in steps for part in _in_small_sends(step, answer.bytes_per_send, answer.gap)]


def _steps(answer: Answer, reply: Reply, head_only: bool, keep_alive: bool) -> list[Step]:
    fault = answer.fault
    if fault is not None and fault.at == "request":
        return [Break(fault.kind)]
    steps: list[Step] = []
    if answer.delay_to_head:
        steps.append(Pause(answer.delay_to_head))
    if answer.raw is not None:
        return [*steps, Send(answer.raw)]
    pieces = _pieces(answer, reply)
    framing = answer.framing or ("chunked" if reply.body is None else "length")
    bodyless = head_only or answer.status in (204, 304)
    head = _interim(answer) + _head(answer, reply, framing, sum(map(len, pieces)), keep_alive)
    if fault is not None and fault.at == "mid_head":
        return [*steps, Send(head[: len(head) // 2]), Break(fault.kind)]
    steps.append(Send(head))
    if fault is not None and fault.at == "body":
        return [*steps, Break(fault.kind)]
    if not bodyless:
        steps += _body_steps(answer, [_framed(p, framing, answer.chunk_size_error) for p in pieces], framing)
    if answer.trailing and not isinstance(steps[-1], Break):
        steps.append(Send(answer.trailing))
    return steps


def _pieces(answer: Answer, reply: Reply) -> list[bytes]:
    pieces = [reply.body] if reply.body is not None else list(reply.events or ())
    if answer.gzip:
        pieces = [gzip.compress(b"".join(pieces))]
    return [piece for piece in pieces if piece]


def _interim(answer: Answer) -> bytes:
    return b"".join(
        f"HTTP/1.1 {status} {_REASONS.get(status, 'Interim')}\r\nx-interim: yes\r\n\r\n".encode()
        for status in answer.interim
    )


def _head(answer: Answer, reply: Reply, framing: Framing, length: int, keep_alive: bool) -> bytes:
    usual: dict[str, str] = {"content-type": reply.content_type}
    if framing == "chunked":
        usual["transfer-encoding"] = "chunked"
    elif framing == "length" and answer.status != 204:
        usual["content-length"] = str(length)
    if answer.declared_length is not None:
        usual["content-length"] = str(answer.declared_length)
    if answer.gzip:
        usual["content-encoding"] = "gzip"
    if answer.close or not keep_alive:
        usual["connection"] = "close"
    for name, _ in answer.headers:
        usual.pop(name.lower(), None)
    lines = [f"HTTP/1.1 {answer.status} {_REASONS.get(answer.status, 'Status')}"]
    lines += [f"{name}: {value}" for name, value in (*usual.items(), *answer.headers)]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"


def _framed(piece: bytes, framing: Framing, error: int) -> bytes:
    if framing != "chunked":
        return piece
    return b"%x\r\n%b\r\n" % (len(piece) + error, piece)


def _body_steps(answer: Answer, pieces: list[bytes], framing: Framing) -> list[Step]:
    fault = answer.fault
    steps: list[Step] = [Pause(answer.delay_to_body)] if answer.delay_to_body else []
    for number, piece in enumerate(pieces):
        if number and answer.gap:
            steps.append(Pause(answer.gap))
        if fault is not None and fault.at == "mid_body" and number + 1 >= fault.after:
            if fault.after:
                steps.append(Send(piece[: len(piece) // 2] if fault.split else piece))
            return [*steps, Break(fault.kind)]
        steps.append(Send(piece))
    if framing == "chunked":
        trailers = "".join(f"{name}: {value}\r\n" for name, value in answer.trailers)
        steps.append(Send(b"0\r\n" + trailers.encode("latin-1") + b"\r\n"))
    if fault is not None and fault.at == "end":
        last = steps.pop() if steps else Send(b"")
        if isinstance(last, Send):
            steps.append(Send(last.data[:-1]))
        steps.append(Break(fault.kind))
    return steps


def _in_small_sends(step: Step, size: int, gap: float) -> list[Step]:
    if not isinstance(step, Send):
        return [step]
    small: list[Step] = []
    for start in range(0, len(step.data), size):
        small += [Send(step.data[start : start + size]), Pause(gap)]
    return small
