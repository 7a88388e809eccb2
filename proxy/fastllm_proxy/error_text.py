"""Reading the text of a backend's error: bounded in size and time, and never what decides. A status has said
what became of the attempt before its text has come."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from fastllm_proxy import refusals
from fastllm_proxy.compressed import coding_of, readable
from fastllm_proxy.errors import Refused, UpstreamError
from fastllm_proxy.outcomes import Answer
from fastllm_proxy.wire import header, passing_response_headers

if TYPE_CHECKING:
    from fastllm_proxy.backends import Backend
    from fastllm_proxy.exchange import Exchange
    from fastllm_proxy.upstream import ResponseHead, UpstreamConnection

ERROR_BYTES: Final = 1024 * 1024
"""How much of an error's text is kept while another backend is tried."""

_SHOWN_CHARACTERS: Final = 300


async def read_error(connection: UpstreamConnection, seconds: float) -> bytes | None:
    """The whole text; `None` if it does not come within `seconds`, breaks off, or has no end."""
    pieces = []
    size = 0
    deadline = time.monotonic() + seconds
    try:
        while piece := await connection.read(max(deadline - time.monotonic(), 0.0)):
            pieces.append(piece)
            size += len(piece)
            if size > ERROR_BYTES:
                return None
    except UpstreamError:
        return None
    return b"".join(pieces)


def error_answer(exchange: Exchange, head: ResponseHead, text: bytes | None) -> Answer:
    """The error as the client is to get it: the backend's, or under its status one of ours if the text did
    not come."""
    if text is not None:
        return Answer(head.status, passing_response_headers(head.headers, event_stream=False), text)
    refused = Refused(head.status, "upstream_error", "the backend failed, and did not say why")
    if (wait := header(head.headers, b"retry-after")) is not None:
        refused.headers = (("retry-after", wait.decode("latin-1")),)
    return Answer(*refusals.render(refused, exchange.endpoint.dialect, exchange.request_id))


def readable_text(head: ResponseHead, text: bytes | None) -> bytes:
    """The text as it reads, for those who look into it; empty if there is none, or it cannot be told."""
    return b"" if text is None else readable(text, coding_of(head.headers))


def excerpt(text: bytes, backend: Backend) -> str:
    """A provider's words for the log, without the secrets that it may repeat: an extra header often holds
    another one."""
    shown = text.decode("utf-8", "replace")
    provider = backend.provider
    for secret in (provider.credential, *(value for _, value in provider.extra_headers)):
        if secret:
            shown = shown.replace(secret, "***")
    return shown[:_SHOWN_CHARACTERS]
