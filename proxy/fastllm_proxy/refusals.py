"""Answers of our own, as wire bytes: OpenAI's error object with all four keys, or Anthropic's.

`headers` in here are ready lines, each with its CRLF, as `downstream` takes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from fastllm_proxy.errors import Refused

if TYPE_CHECKING:
    from fastllm_proxy.downstream import Downstream
    from fastllm_shared.targets import Dialect

JSON_HEADERS: Final = b"content-type: application/json\r\n"

SHOWN_PATH_CHARACTERS: Final = 200
_SAFE_IN_PATH: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789/._~-%:@+,=*")

_OPENAI_TYPES: Final = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    504: "timeout_error",
}
_ANTHROPIC_TYPES: Final = {**_OPENAI_TYPES, 413: "request_too_large", 503: "overloaded_error"}

_encode: Final = msgspec.json.Encoder().encode


class _OpenAIError(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str | None


class _OpenAIBody(msgspec.Struct, frozen=True):
    error: _OpenAIError


class _AnthropicError(msgspec.Struct, frozen=True):
    type: str
    message: str


class _AnthropicBody(msgspec.Struct, frozen=True, tag_field="type", tag="error"):
    error: _AnthropicError
    request_id: str


def error_type(status: int, dialect: Dialect) -> str:
    """The `type` of an error object for a status."""
    known = (_ANTHROPIC_TYPES if dialect == "anthropic" else _OPENAI_TYPES).get(status)
    if known is not None:
        return known
    return "api_error" if status >= 500 else "invalid_request_error"


def error_body(refused: Refused, dialect: Dialect, request_id: str) -> bytes:
    """The error object as JSON."""
    kind = error_type(refused.status, dialect)
    if dialect == "anthropic":
        return _encode(_AnthropicBody(_AnthropicError(kind, refused.message), request_id))
    return _encode(_OpenAIBody(_OpenAIError(refused.message, kind, refused.param, refused.code)))


def render(refused: Refused, dialect: Dialect, request_id: str) -> tuple[int, bytes, bytes]:
    """Status, header lines and body."""
    lines = JSON_HEADERS
    for name, value in refused.headers:
        lines += b"%b: %b\r\n" % (name.encode("latin-1"), value.encode("latin-1", "replace"))
    return refused.status, lines, error_body(refused, dialect, request_id)


def answer(downstream: Downstream, refused: Refused, dialect: Dialect) -> None:
    """Sends the refusal. Nothing may have been sent before."""
    downstream.send_whole(*render(refused, dialect, downstream.request_id))


def safe_path(path: str) -> str:
    """What an error message may repeat of a request path: no query, 200 plain characters."""
    return "".join([c if c in _SAFE_IN_PATH else "?" for c in path[:SHOWN_PATH_CHARACTERS]])


def unknown_url(method: str, path: str) -> Refused:
    return Refused(404, "unknown_url", f"no route for {method} {safe_path(path)}")


def method_not_allowed(method: str, path: str, allow: str) -> Refused:
    message = f"{method} is not allowed on {safe_path(path)}; use {allow}"
    return Refused(405, "method_not_allowed", message, headers=(("allow", allow),))


def not_ready() -> Refused:
    message = "this replica has not received its configuration yet"
    return Refused(503, "not_ready", message, headers=(("retry-after", "2"),))


def overloaded(message: str) -> Refused:
    return Refused(503, "overloaded", message, headers=(("retry-after", "1"),))


def internal_error() -> Refused:
    return Refused(500, "internal_error", "the gateway failed on this request; its log says why")


def malformed() -> Refused:
    return Refused(400, "malformed_request", "the request is not well-formed HTTP/1.1")


def headers_too_large(limit_bytes: int, limit_fields: int) -> Refused:
    message = f"the request line and headers exceed {limit_bytes // 1024} KiB or {limit_fields} fields"
    return Refused(431, "headers_too_large", message)


def request_too_large(limit_bytes: int) -> Refused:
    return Refused(413, "request_too_large", f"the request body exceeds {limit_bytes} bytes")


def request_timeout(message: str) -> Refused:
    return Refused(408, "request_timeout", message)


def unsupported_encoding() -> Refused:
    message = "the request's Content-Encoding is not supported; use gzip, deflate or none"
    return Refused(415, "unsupported_encoding", message)


def undecodable_body() -> Refused:
    return Refused(400, "invalid_encoding", "the request body does not decode as its Content-Encoding says")


def invalid_form(what: str) -> Refused:
    return Refused(400, "invalid_multipart", f"the form is not valid: {what}")
