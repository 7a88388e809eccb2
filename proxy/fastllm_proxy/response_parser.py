"""What counts as a response from a backend, decided apart from any socket.

httptools (llhttp, strict) already refuses bare line feeds, folded headers, spaces before the colon, control
characters, repeated or non-numeric lengths, a length beside a transfer coding, and malformed chunks. Refused
here is what it lets through and what would let two readers of the same bytes disagree:

    a start other than `HTTP/1.` (it accepts RTSP, HTTP/0.9 and blank lines before the status line)
    a transfer coding other than exactly one `chunked`, or any under HTTP/1.0
    101, statuses outside 200–599, interim responses without end
    heads and trailers over 64 KiB or 128 lines, framing that goes on without bringing any body
    any byte after the response, blank lines included: the response stands, the connection is not used again
"""

from __future__ import annotations

import httptools
import msgspec

from fastllm_proxy.errors import BadResponse, ConnectionReset

MAX_HEAD_BYTES = 65_536
MAX_HEADERS = 128
MAX_INTERIM = 16
"""Interim (1xx) responses before the real one. A server has reason to send two or three."""

_KEPT_BYTES = 1024
"""What is no longer than this is kept as it is, where its end alone is needed."""

_HEAD_END = b"\r\n\r\n"
_START = b"HTTP/1."
_INTERIM = ord("1")  # the first digit of such a status, after `HTTP/1.1 `


class ResponseHead(msgspec.Struct, frozen=True, gc=False):
    """Status and headers but the length; names lower-cased, values without surrounding white space.

    `content_length` is the length of the body in bytes; `None`: chunked, or until the backend closes.
    """

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    content_length: int | None


class _Excess(Exception):
    """Stops httptools at the head of a second response."""


class ResponseParser:
    """Reads the responses of one connection, one after the other.

    `begin` starts a response and `feed` takes bytes. Then `head` is set once it is known, `take` hands out
    body bytes, `complete` says that the response has ended, `received` counts its bytes so far, and
    `reusable` says whether the connection may carry another request.

    Framing state: `_head_bytes` counts the heads, interim ones included; `_length` is the body's, or
    `_chunked`; `_tail` ends in the last bytes of a chunked body, `_barren` counts framing since the last of
    its body bytes.
    """

    __slots__ = (
        "_barren",
        "_bodyless",
        "_chunked",
        "_excess",
        "_head_bytes",
        "_headers",
        "_http",
        "_interim",
        "_length",
        "_partial",
        "_tail",
        "complete",
        "head",
        "on_body",
        "pieces",
        "received",
        "reusable",
    )

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.on_body = self.pieces.append  # what httptools calls, with no frame of ours between
        self._http = httptools.HttpResponseParser(self)
        self._bodyless = False
        self._excess = False
        self._partial: bytearray | None = None
        self._tail: bytes | bytearray = b""
        self._barren = 0
        self.complete = True
        self.reusable = False
        self.head: ResponseHead | None = None
        self.received = 0

    def begin(self, *, bodyless: bool = False) -> None:
        """`bodyless`: the request was a HEAD, whose response has no body whatever its headers say."""
        if self._bodyless:
            self._http = httptools.HttpResponseParser(self)  # the old one still waits for that body
        self._bodyless = bodyless
        self.pieces.clear()  # what nobody has read of the response before must not turn up in this one
        self._headers: list[tuple[bytes, bytes]] = []
        self._length: int | None = None
        self._chunked = False
        self._head_bytes = 0
        self._interim = 0
        self.head = None
        self.complete = False
        self.reusable = False
        self.received = 0

    @property
    def body_begun(self) -> bool:
        return self.head is not None and self.received > self._head_bytes

    def close(self) -> None:
        """No more bytes will come. Parser and callbacks refer to each other: cut, no collector is needed."""
        del self._http

    def take(self) -> bytes:
        """The body bytes that have come since the last call, as one piece."""
        pieces = self.pieces
        piece = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        return piece

    def feed(self, data: bytes | bytearray) -> None:
        """Takes what the socket gave, which must not change afterwards. Raises `BadResponse`; bytes after the
        end only end the reuse."""
        ended = self.complete
        if ended:
            self._exceed()
            return
        size = len(data)
        self.received += size
        if self.head is None:
            # Nearly always the whole head comes in one piece and is no interim one: llhttp gets all at once.
            end = data.find(_HEAD_END)
            if end < 0 or self._head_bytes or not data.startswith(_START) or data[9] == _INTERIM:
                self._feed_heads(data)
                return
            self._head_bytes = end + 4
            if self._head_bytes > MAX_HEAD_BYTES:
                raise _too_long()
        try:
            self._http.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._refuse(error)
        if self._chunked:
            if self.pieces and not self.complete:
                # Cutting the end out of each event costs more than keeping the last event.
                self._tail = data if size <= _KEPT_BYTES else data[-5:]
                self._barren = 0
            else:
                self._check_chunks(data)
        elif self.complete and self.received - self._head_bytes != self._length:
            self._exceed()
            if self._bodyless:
                self.pieces.clear()

    def end_of_stream(self) -> None:
        """The backend has closed. Raises `ConnectionReset` unless that is how this response ends."""
        if self.complete:
            return
        if self.head is None or self._chunked or self._length is not None:
            where = "before the head was complete" if self.head is None else "inside the body"
            raise ConnectionReset(f"closed {where}", received=self.received)
        self.complete = True

    def _feed_heads(self, data: bytes | bytearray) -> None:
        """Feeds one head after the other, so that it is known where each of them ends."""
        while data and self.head is None:
            if self._partial is None:
                self._partial = bytearray()
            seen = len(self._partial)
            self._partial += data
            if not self._partial.startswith(_START[: len(self._partial)]):
                raise BadResponse("what came does not start as HTTP/1 does")
            end = self._partial.find(_HEAD_END, max(0, seen - 3))
            cut = len(data) if end < 0 else end + len(_HEAD_END) - seen
            self._count_head(cut)
            try:
                self._http.feed_data(data[:cut])
            except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
                self._refuse(error)
            data = data[cut:]
            if end >= 0:
                self._partial = None
        if data:
            self.received -= len(data)
            self.feed(data)

    def _exceed(self) -> None:
        self._excess = True
        self.reusable = False

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            raise _too_long()

    def _refuse(self, error: Exception) -> None:
        if self.complete:
            self._exceed()
            return
        refused = error.__context__  # what a callback raised
        if isinstance(refused, BadResponse):
            raise refused from None
        raise BadResponse(f"malformed response: {error}") from error

    def _check_chunks(self, data: bytes | bytearray) -> None:
        """Finds bytes beyond the end (llhttp skips line ends there), and framing that brings no body."""
        tail = (self._tail + data[-5:])[-5:]
        if self.complete:
            # The last chunk or trailer, one line end, one blank line; more line ends would show in front.
            if not tail.endswith(_HEAD_END) or tail[0] in b"\r\n":
                self._exceed()
            return
        self._tail = tail
        self._barren += len(data)
        if self._barren > MAX_HEAD_BYTES:
            raise BadResponse("chunk framing or trailers without end")

    # Called by httptools.

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value.rstrip()))

    def on_headers_complete(self) -> None:
        if self.head is not None:
            raise _Excess
        status = self._http.get_status_code()
        if status < 200:
            self._skip_interim(status)
            return
        if status > 599:
            raise BadResponse(f"status {status}")
        headers = self._headers
        if len(headers) > MAX_HEADERS:
            raise BadResponse(f"more than {MAX_HEADERS} headers")
        for header in headers:
            if header[0] == b"content-length":
                self._length = int(header[1])  # llhttp has seen to it that there is one, and only digits
                length = header
            elif header[0] == b"transfer-encoding":
                self._accept_coding(header[1])
        if self._length is not None:
            headers.remove(length)
        if self._bodyless or status == 204 or status == 304:
            self._end_without_body(status)
        self.head = ResponseHead(status, tuple(headers), self._length)

    def on_message_complete(self) -> None:
        if self.head is None:
            return  # an interim one
        self.complete = True
        # Asked any later, llhttp says no.
        self.reusable = self._http.should_keep_alive() and not self._excess

    def _skip_interim(self, status: int) -> None:
        if status == 101 or status < 100:
            raise BadResponse(f"status {status}")
        self._interim += 1
        if self._interim > MAX_INTERIM:
            raise BadResponse(f"more than {MAX_INTERIM} interim responses")
        self._headers = []

    def _accept_coding(self, value: bytes) -> None:
        if self._chunked or value.lower() != b"chunked" or self._http.get_http_version() != "1.1":
            raise BadResponse("a transfer coding other than one `chunked` under HTTP/1.1")
        self._chunked = True
        self._tail = b""
        self._barren = 0

    def _end_without_body(self, status: int) -> None:
        if status == 204 and (self._length or self._chunked):
            self._excess = True  # it announces what must not come: whatever follows is not to be trusted
        self._length = 0
        self._chunked = False
        if self._bodyless:
            self.complete = True
            self.reusable = self._http.should_keep_alive()


def _too_long() -> BadResponse:
    return BadResponse(f"head over {MAX_HEAD_BYTES} bytes")
