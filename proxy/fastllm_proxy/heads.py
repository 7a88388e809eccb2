"""What the head of a request may be: the limits, the parser that keeps most of them, and what is checked
after it because it is laxer than we are."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec
from aiohttp import hdrs
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpProcessingError, HttpRequestParser, HttpVersion10, HttpVersion11
from aiohttp.http_exceptions import LineTooLong
from aiohttp.http_parser import RawRequestMessage
from aiohttp.web_protocol import RequestPayloadError

from fastllm_proxy import refusals
from fastllm_proxy.errors import Refused

READ_BUFFER_BYTES: Final = 64 * 1024
PIPELINED_REQUESTS: Final = 32


class ConnectionLimits(msgspec.Struct, frozen=True):
    """What a client may send as a head, and how long a connection waits for what. Seconds and bytes.

    `keepalive_seconds` outlasts the idle timeouts of common load balancers (600 s at most), so that they
    close first and no request meets a closing connection. `linger_…`: how long a client may go on sending
    after the last answer, in all and without a byte.
    """

    head_bytes: int = 32 * 1024
    head_fields: int = 256
    head_seconds: float = 10.0
    keepalive_seconds: float = 620.0
    discard_seconds: float = 5.0
    linger_seconds: float = 30.0
    linger_pause_seconds: float = 3.0


def parser_limits(limits: ConnectionLimits) -> dict[str, Any]:
    """The limits as aiohttp's parser takes them."""
    return {
        "max_line_size": limits.head_bytes,
        "max_field_size": limits.head_bytes,
        "max_headers": limits.head_fields,
        "auto_decompress": False,
    }


def new_parser(
    protocol: BaseProtocol, loop: asyncio.AbstractEventLoop, limits: ConnectionLimits
) -> HttpRequestParser:
    """A parser like the one that a connection begins with."""
    return HttpRequestParser(
        protocol,
        loop,
        READ_BUFFER_BYTES,
        payload_exception=RequestPayloadError,
        max_msg_queue_size=PIPELINED_REQUESTS,
        **parser_limits(limits),
    )


def too_large(limits: ConnectionLimits) -> Refused:
    return refusals.headers_too_large(limits.head_bytes, limits.head_fields)


def refusal_of(error: HttpProcessingError, limits: ConnectionLimits) -> Refused:
    """The answer to what the parser refused. Its own messages repeat the request."""
    if isinstance(error, LineTooLong) or error.message == "Too many headers received":
        return too_large(limits)
    return refusals.malformed()


def objection(message: RawRequestMessage, limits: ConnectionLimits) -> Refused | None:
    """Why a head that was parsed is not served, if it is not."""
    size = len(message.path) + sum([len(name) + len(value) + 4 for name, value in message.raw_headers])
    if size > limits.head_bytes:
        return too_large(limits)
    # llhttp also takes HTTP/0.9, chunks from HTTP/1.0, where others see no framing, and any list of codings
    # that ends in `chunked`.
    if message.version is not HttpVersion11 and (message.version is not HttpVersion10 or message.chunked):
        return refusals.malformed()
    if message.chunked and message.headers.get(hdrs.TRANSFER_ENCODING, "").lower() != "chunked":
        return refusals.malformed()
    return None
