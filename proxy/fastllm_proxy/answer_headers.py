"""What the headers of a backend's answer say: what kind of answer it is, and which lines go to the client.

An engine sends the same headers with every answer, but for the date that changes once a second, so they are
kept with the backend and read again only when they differ. The length is not among them: the parser of
responses hands it out by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastllm_proxy.compressed import coding_of
from fastllm_proxy.sse import EVENT_STREAM
from fastllm_proxy.wire import header, passing_response_headers

if TYPE_CHECKING:
    from fastllm_proxy.client_headers import RawHeaders


class AnswerHeaders:
    """`coding` is the content coding, empty for none; `lines` are the client's, each with its CRLF."""

    __slots__ = ("coding", "event_stream", "lines", "raw")

    def __init__(self, raw: RawHeaders) -> None:
        kind = header(raw, b"content-type") or b""
        self.raw = raw
        self.event_stream = kind[: len(EVENT_STREAM)].lower() == EVENT_STREAM
        self.coding = coding_of(raw)
        self.lines = passing_response_headers(raw, event_stream=self.event_stream)
