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

_HEAD_END = b"\r\n\r\n"
_START = b"HTTP/1."
_LINE_OVERHEAD = 4  # ": " and CRLF


class ResponseHead(msgspec.Struct, frozen=True, gc=False):
    """Status and headers, names lower-cased, values without surrounding white space.

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
        "_keep_alive",
        "_length",
        "_partial",
        "_tail",
        "complete",
        "head",
        "on_body",
        "pieces",
        "received",
    )

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.on_body = (
            self.pieces.append
        )  # called by httptools for every piece, with no frame of ours between
        self._http = httptools.HttpResponseParser(self)
        self._bodyless = False
        self._excess = False
        self._keep_alive = False
        self.complete = True
        self.head: ResponseHead | None = None
        self.received = 0

    def begin(self, *, bodyless: bool = False) -> None:
        """`bodyless`: the request was a HEAD, whose response has no body whatever its headers say."""
        if self._bodyless:
            self._http = httptools.HttpResponseParser(self)  # the old one still waits for that body
        self._bodyless = bodyless
        self._headers: list[tuple[bytes, bytes]] = []
        self._length: int | None = None
        self._chunked = False
        self._head_bytes = 0
        self._barren = 0
        self._interim = 0
        self._partial = bytearray()  # of a head that comes in pieces
        self._tail = b""  # the last five bytes of a chunked body so far
        self.head = None
        self.complete = False
        self.received = 0

    @property
    def reusable(self) -> bool:
        return self.complete and self._keep_alive and not self._excess

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

    def feed(self, data: bytes) -> None:
        """Takes what the socket gave. Raises `BadResponse`; bytes after the end only end the reuse."""
        if self.complete:
            self._excess = True
            return
        self.received += len(data)
        if self.head is None:
            self._feed_head(data)
        else:
            self._feed_body(data)

    def end_of_stream(self) -> None:
        """The backend has closed. Raises `ConnectionReset` unless that is how this response ends."""
        if self.complete:
            return
        if self.head is None or self._chunked or self._length is not None:
            where = "before the head was complete" if self.head is None else "inside the body"
            raise ConnectionReset(f"closed {where}", received=self.received)
        self.complete = True

    def _feed_head(self, data: bytes) -> None:
        # Nearly always the whole head comes in one piece and is no interim one: then llhttp gets all at once.
        if not self._head_bytes and data.startswith(_START) and data[9:10] != b"1":
            end = data.find(_HEAD_END)
            if end >= 0:
                self._count_head(end + len(_HEAD_END))
                self._feed_body(data)
                return
        self._feed_head_slowly(data)

    def _feed_head_slowly(self, data: bytes) -> None:
        """Feeds one head after the other, so that it is known where each of them ends."""
        while data and self.head is None:
            partial = self._partial
            seen = len(partial)
            partial += data
            if not partial.startswith(_START[: len(partial)]):
                raise BadResponse("what came does not start as HTTP/1 does")
            end = partial.find(_HEAD_END, max(0, seen - 3))
            cut = len(data) if end < 0 else end + len(_HEAD_END) - seen
            self._count_head(cut)
            self._execute(data[:cut])
            data = data[cut:]
            if end >= 0:
                partial.clear()
        if data:
            self._feed_body(data)
        elif self.complete:
            self._check_framing(b"")

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            raise BadResponse(f"head over {MAX_HEAD_BYTES} bytes")

    def _feed_body(self, data: bytes) -> None:
        self._execute(data)
        self._check_framing(data)

    def _execute(self, data: bytes) -> None:
        try:
            self._http.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if self.complete:
                self._excess = True
                return
            refused = error.__context__
            if isinstance(refused, BadResponse):
                raise refused from None
            raise BadResponse(f"malformed response: {error}") from error

    def _check_framing(self, data: bytes) -> None:
        """Finds bytes beyond the end (llhttp skips line ends there), and framing that brings no body."""
        if self._chunked:
            tail = data[-5:] if len(data) >= 5 else (self._tail + data)[-5:]
            if self.complete:
                # The last chunk or trailer, one line end, one blank line; more line ends would show in front.
                if not tail.endswith(_HEAD_END) or tail[0] in b"\r\n":
                    self._excess = True
                return
            self._tail = tail
            self._barren = 0 if self.pieces else self._barren + len(data)
            if self._barren > MAX_HEAD_BYTES:
                raise BadResponse("chunk framing or trailers without end")
        elif self.complete and self.received - self._head_bytes > (self._length or 0):
            self._excess = True
            if self._bodyless:
                self.pieces.clear()

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
        for name, value in headers:
            if name == b"content-length":
                self._length = int(value)  # llhttp has seen to it that there is one, and only digits
            elif name == b"transfer-encoding":
                self._accept_coding(value)
        if self._bodyless or status in (204, 304):
            self._end_without_body(status)
        self.head = ResponseHead(status, tuple(headers), self._length)

    def on_message_complete(self) -> None:
        if self.head is None:
            return  # an interim one
        self.complete = True
        # Asked any later, llhttp says no.
        self._keep_alive = self._http.should_keep_alive()

    def _skip_interim(self, status: int) -> None:
        self._interim += 1
        if status == 101 or status < 100:
            raise BadResponse(f"status {status}")
        if self._interim > MAX_INTERIM:
            raise BadResponse(f"more than {MAX_INTERIM} interim responses")
        self._headers = []

    def _accept_coding(self, value: bytes) -> None:
        if self._chunked or value.lower() != b"chunked" or self._http.get_http_version() != "1.1":
            raise BadResponse("a transfer coding other than one `chunked` under HTTP/1.1")
        self._chunked = True

    def _end_without_body(self, status: int) -> None:
        if status == 204 and (self._length or self._chunked):
            self._excess = True  # it announces what must not come: whatever follows is not to be trusted
        self._length = 0
        self._chunked = False
        if self._bodyless:
            self.complete = True
            self._keep_alive = self._http.should_keep_alive()
