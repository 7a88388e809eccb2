"""What a backend's error is about, read from its text: does it refuse *us*, or is it the client's?

Engines and providers differ in where the words stand. Read are the members of an `error` object, of the whole
if there is none, or of `detail`; `error` and `detail` may also be the message itself.
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal

import msgspec

from fastllm_proxy.sse import event_end, fields

Subject = Literal["rejected", "busy", "other"]

_MAX_BYTES: Final = 64 * 1024
_MAX_MESSAGE: Final = 2000

_MISSING_CODES: Final = frozenset(
    (
        "deploymentnotfound",
        "invalidmodel",
        "modelnotavailable",
        "modelnotexist",
        "modelnotfound",
        "modelnotfounderror",
        "unknownmodel",
    )
)
_REJECTED_CODES: Final = frozenset(
    (
        "accessdenied",
        "accountdeactivated",
        "authenticationerror",
        "billingerror",
        "forbidden",
        "incorrectapikey",
        "insufficientcredits",
        "invalidapikey",
        "invalidauthentication",
        "paymentrequired",
        "permissiondenied",
        "permissiondeniederror",
        "permissionerror",
        "unauthenticated",
        "unauthorized",
        "unauthorizederror",
    )
)
_BUSY_CODES: Final = frozenset(
    (
        "insufficientquota",
        "overloaded",
        "overloadederror",
        "ratelimit",
        "ratelimiterror",
        "ratelimitexceeded",
        "resourceexhausted",
        "toomanyrequests",
    )
)
_REJECTED_STATUSES: Final = frozenset((401, 402, 403))
_BUSY_STATUSES: Final = frozenset((429, 529))

# What stands in quotes is a name, and may be the client's own: of a file, of a tool.
_QUOTED: Final = re.compile(r"`[^`]*`|\"[^\"]*\"|(?<!\w)'[^']*'(?!\w)|\u201c[^\u201d]*\u201d")
_CLAUSE: Final = re.compile(r"(?:[.;!?,]|(?<!model)(?<!models):|\s-|\s\u2014)\s+|\n", re.IGNORECASE)
_END: Final = r"(?![.\w-]*\w)"
_ABSENT: Final = (
    r"(?:not found|(?:does not|doesn't|do not|don't) exist|not exist|(?:could not|cannot|can't) be found)"
)
_GONE: Final = (
    rf"(?:{_ABSENT}|not available|unavailable|not loaded|not served|not deployed|not supported|no longer"
    r"|unknown)"
)
_SUBJECT: Final = re.compile(
    r"\W*(?:(?:the|this|that|your|a|an|api|requested|specified|given|provided|base|lora|error)\s+)*"
    r"(?:models?|model deployment|model id|model name|deployment|api deployment)"
    r"(?:/\S+|(?=\s|$|[`\":,]))(?P<rest>.*)",
    re.IGNORECASE | re.DOTALL,
)
_OTHER_SUBJECT: Final = re.compile(
    r"\b(?:files?|tools?|functions?|images?|voices?|responses?|conversations?|path|route|url)\b",
    re.IGNORECASE,
)
_IS_GONE: Final = re.compile(_GONE + _END, re.IGNORECASE)
_IS_ABSENT: Final = re.compile(_ABSENT + _END, re.IGNORECASE)
_NO_SUCH: Final = re.compile(
    r"\W*(?:(?:there is\s+)?(?:no such|unknown|no)\s+(?:model|deployment)(?![.\w/-]*\w)"
    r"|invalid model(?: name| id)?\s*(?:$|[:\u00b7])|no (?:allowed )?(?:endpoints|providers)\b)",
    re.IGNORECASE,
)
_ANTHROPIC_MODEL: Final = re.compile(r"models?: ?\S+", re.IGNORECASE)

_decode = msgspec.json.Decoder().decode


def names_missing_model(text: bytes | bytearray) -> bool:
    """Whether a 404's text says that the backend has no such model, rather than a path, a file or anything
    else that the client named."""
    found = _decoded(text)
    if found is None:
        plain = bytes(text[:_MAX_MESSAGE]).decode("utf-8", "replace")
        return not plain.lstrip().startswith("<") and _says_of_model(plain, _IS_GONE)
    return _is_missing_model(_error_of(found), _IS_GONE)


def subject_of_event(text: bytes) -> Subject:
    """What the first error event of a stream is about. `text` is what came of the stream, whole events."""
    start = 0
    while (end := event_end(text, start)) >= 0:
        data = fields(text[start:end])[1]
        start = end
        if data:
            return _subject(_error_of(_decoded(data)))
    return "other"


def _subject(error: dict[str, Any]) -> Subject:
    status = _status(error)
    codes = _codes(error)
    if status in _REJECTED_STATUSES or codes & _REJECTED_CODES:
        return "rejected"
    if status in (None, 400, 404):
        # Without the status 404 words have to be plainer: a model may well not support what a client wants.
        words = _IS_GONE if status == 404 else _IS_ABSENT
        if _is_missing_model(error, words):
            return "rejected"
    if status in _BUSY_STATUSES or codes & _BUSY_CODES:
        return "busy"
    return "other"


def _decoded(text: bytes | bytearray) -> Any:
    if len(text) > _MAX_BYTES:
        return None
    try:
        return _decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _error_of(found: Any) -> dict[str, Any]:
    """The object that describes the error; empty if there is none."""
    if isinstance(found, list) and len(found) == 1:
        found = found[0]
    for name in ("detail", "error"):
        inner = found.get(name) if isinstance(found, dict) else None
        if not inner or (name == "detail" and "error" in found):
            continue
        if isinstance(inner, str):
            return {**found, "message": inner}
        found = inner
    return found if isinstance(found, dict) else {}


def _status(error: dict[str, Any]) -> int | None:
    for name in ("code", "status", "status_code", "http_code"):
        value = error.get(name)
        if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) == 3:
            value = int(value)
        if type(value) is int and 100 <= value <= 599:
            return value
    return None


def _codes(error: dict[str, Any]) -> set[str]:
    values = [error.get(name) for name in ("code", "type", "status", "error_type")]
    return {re.sub(r"[\W_]", "", value.lower()) for value in values if isinstance(value, str)}


def _is_missing_model(error: dict[str, Any], words: re.Pattern[str]) -> bool:
    codes = _codes(error)
    if codes & _MISSING_CODES:
        return True
    message = error.get("message")
    if not isinstance(message, str):
        return False
    if "notfounderror" in codes and _ANTHROPIC_MODEL.fullmatch(message.strip()):
        return True
    return _says_of_model(message[:_MAX_MESSAGE], words)


def _says_of_model(message: str, words: re.Pattern[str]) -> bool:
    """Whether a clause has the model as its subject and says one of `words` of it."""
    for clause in _CLAUSE.split(_QUOTED.sub(" \u00b7 ", message)):
        if _NO_SUCH.match(clause):
            return True
        found = _SUBJECT.match(clause)
        if found is None:
            continue
        gone = words.search(found["rest"])
        if gone and not _OTHER_SUBJECT.search(found["rest"], 0, gone.start()):
            return True
    return False
