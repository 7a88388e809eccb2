"""What counts as a request from a client, decided apart from any socket.

Where a message ends is decided here: httptools (llhttp, strict) is given one head, or the body that this head
announced, and never a byte of what follows. It refuses bare line feeds, folded headers, spaces before the
colon, control characters, repeated or non-numeric lengths and a length beside a transfer coding. Refused here
is what it lets through and what would let two readers of the same bytes disagree:

    versions other than HTTP/1.1 and HTTP/1.0 (it accepts RTSP, HTTP/0.9 and 2.0), and anything in front
    of the request line but whole line ends
    a target `*` of anything but OPTIONS
    no host or several under HTTP/1.1, several under HTTP/1.0
    a transfer coding other than exactly one `chunked`, or any under HTTP/1.0
    heads and trailers over 32 KiB or 256 fields
What comes behind a request that closes the connection is nothing.
Chunked bodies are read by `chunks`.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import httptools

from fastllm_proxy import refusals
from fastllm_proxy.chunks import Chunks
from fastllm_proxy.errors import Refused
from fastllm_proxy.heads import (
    PICKED,
    PIPELINED_REQUESTS,
    ConnectionLimits,
    Request,
    consider,
    too_large,
    version_of,
)

LENGTH_DIGITS: Final = 20
"""Of the greatest length that llhttp takes; it also takes any number of zeros in front."""

KNOWN_BYTES: Final = 4 * 1024
"""Up to this size a head is kept, since clients repeat them."""

_HEAD_END: Final = b"\r\n\r\n"
_LENGTH: Final = b"content-length"
_LINE_END: Final = b"\r\n"
_POST: Final = b"POST "
_HTTP11: Final = b" HTTP/1.1\r\n"


class RequestParser:
    """Reads the requests of one connection, one after the other.

    `feed` takes bytes and puts what they are into `arrived`, in order: requests, and the refusal of what is
    none. After a refusal, and after a request that is the connection's last, `ended` is set: nothing is
    parsed any more. `unread` counts the body bytes that nobody has taken yet.

    State: `open` is the request whose body is not complete, `_chunks` decodes it; `partial` holds the
    beginning of a head, of which llhttp has `_fed` bytes; `rest` is what was not parsed because enough
    requests had arrived; `offered` is a request that offers HTTP/2 and is not served yet; `_known` is a
    request whose head, `_known_head`, may come again.
    """

    __slots__ = (
        "_body_is_ours",
        "_chunks",
        "_fed",
        "_headers",
        "_heads_complete",
        "_http",
        "_known",
        "_known_head",
        "_limits",
        "_picked",
        "_pieces",
        "_url",
        "arrived",
        "ended",
        "offered",
        "on_body",
        "open",
        "partial",
        "rest",
        "unread",
    )

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append  # what httptools calls, with no frame of ours between
        self._http = httptools.HttpRequestParser(self)
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._picked: dict[bytes, bytes] = {}
        self._chunks: Chunks | None = None
        self._fed = 0
        self._known: Request | None = None
        self._known_head = b""
        self._heads_complete = False
        self._body_is_ours = False
        self.arrived: deque[Request | Refused] = deque()
        self.open: Request | None = None
        self.partial = bytearray()
        self.rest: bytearray | None = None
        self.offered: Request | None = None
        self.ended = False
        self.unread = 0

    def close(self) -> None:
        """No more bytes will come. Parser and callbacks refer to each other: cut, no collector is needed."""
        self.ended = True
        del self._http

    def feed(self, data: bytes | bytearray, view: memoryview, size: int) -> bool:
        """Takes the first `size` bytes of `data`, of which `view` is a view; keeps no reference to them.
        Returns `ended`."""
        if self.rest is not None:
            self.rest += view[:size]
            return False
        arrived = self.arrived
        at = 0
        try:
            while at < size:
                if self.open is not None:
                    at = self._read_body(data, view, at, size)
                elif self.ended or self.offered is not None:
                    self._exceed(data, at, size)
                    break
                elif len(arrived) >= PIPELINED_REQUESTS:
                    self.rest = bytearray(view[at:size])
                    break
                else:
                    at = self._read_head(data, view, at, size)
        except Refused as refused:
            self.refuse(refused)
        return self.ended

    def go_on(self) -> None:
        """Parses what was left in `rest`."""
        rest, self.rest = self.rest, None
        if rest is not None and not self.ended:
            self.feed(rest, memoryview(rest), len(rest))

    def refuse(self, refused: Refused) -> None:
        """Ends the parsing. Whoever reads the body that is under way is told; else the refusal takes its
        place among the requests, and that of the one that it is about."""
        self.ended = True
        self.partial = bytearray()
        unfinished, self.open = self.open, None
        if unfinished is not None:
            if not self.arrived or self.arrived[-1] is not unfinished:
                unfinished.failure = refused
                return
            self._withdraw()
        self.arrived.append(refused)

    def _withdraw(self) -> None:
        withdrawn = self.arrived.pop()
        if isinstance(withdrawn, Request):
            self.unread -= withdrawn.unread

    def _exceed(self, data: bytes | bytearray, at: int, size: int) -> None:
        """Bytes behind the connection's last request, which is served whether they come with it or later, or
        behind an offer of another protocol, which may be speaking it: nobody reads them."""
        if bytes(data[at:size]).strip(_LINE_END):
            self.ended = True

    # Heads

    def _read_head(self, data: bytes | bytearray, view: memoryview, at: int, size: int) -> int:
        known = self._known
        if known is not None and not self.partial and data.startswith(self._known_head, at, size):
            self._body_is_ours = True  # llhttp stands before this head, and need not see what comes with it
            request = known.again()
            self.arrived.append(request)
            if not request.complete:
                self.open = request
            return at + len(self._known_head)
        end = data.find(_HEAD_END, at, size) + 4
        if end < 4 or self.partial or data[at] in _LINE_END:
            return self._read_partial(view, at, size)
        if end - at > self._limits.head_bytes:
            raise too_large(self._limits)
        self._begin_head()
        self._feed_llhttp(view[at:end])
        request = self._take_head(data, at)
        if end - at <= KNOWN_BYTES and request.plain:
            self._known = request
            self._known_head = bytes(view[at:end])
        return end

    def _read_partial(self, view: memoryview, at: int, size: int) -> int:
        """A head that comes in pieces, or behind blank lines. llhttp is given what there is, so that nonsense
        is refused before it is long enough to be a head."""
        partial = self.partial
        limit = self._limits.head_bytes
        searched = max(0, len(partial) - 3)
        stop = min(size, at + limit + 1 - len(partial))
        partial += view[at:stop]
        if not self._fed:
            searched = 0
            while partial.startswith(_LINE_END):  # the stray line end that old clients send after a body
                del partial[:2]
            if not partial or partial == b"\r":
                return stop
            if partial[0] in _LINE_END:
                raise refusals.malformed()
            self._begin_head()
        end = partial.find(_HEAD_END, searched) + 4
        upto = end if end >= 4 else len(partial)
        if upto > limit:
            raise too_large(self._limits)
        self._feed_llhttp(memoryview(bytes(partial[self._fed : upto])))
        self._fed = upto
        if end < 4:
            return stop
        self.partial = bytearray()
        self._fed = 0
        self._take_head(partial, 0)
        return stop - (len(partial) - end)

    def _begin_head(self) -> None:
        self._url = b""
        self._headers = []
        self._picked = {}
        self._heads_complete = False
        self._body_is_ours = False

    def _feed_llhttp(self, view: memoryview) -> None:
        try:
            self._http.feed_data(view)
        except httptools.HttpParserUpgrade:
            self._body_is_ours = True  # it takes what follows for another protocol, and then starts anew
        except httptools.HttpParserError:
            raise refusals.malformed() from None

    def _take_head(self, data: bytes | bytearray, at: int) -> Request:
        """Makes the request of a head that llhttp has accepted and that begins at `at`."""
        url = self._url
        if data.startswith(_POST, at):
            method = "POST"
            behind = at + 5 + len(url)
        else:
            name = self._http.get_method()
            method = name.decode()
            behind = at + len(name) + 1 + len(url)
        http11 = data.startswith(_HTTP11, behind) or (version_of(data, at, method, url) == b"HTTP/1.1")
        if not self._heads_complete or (url == b"*" and method != "OPTIONS"):
            raise refusals.malformed()
        headers = tuple(self._headers)
        picked = self._picked
        if len(headers) + (_LENGTH in picked) > self._limits.head_fields:
            raise too_large(self._limits)
        host = picked.get(b"host")
        if host is None:
            if http11:
                raise refusals.malformed()
        elif b" " in host:  # several are joined with one
            raise refusals.malformed()
        text = picked.get(_LENGTH)
        if text is not None and len(text) > LENGTH_DIGITS:
            raise refusals.malformed()
        length = 0 if text is None else int(text)  # llhttp has seen to it that there is one, and only digits
        request = Request(method, url.decode("latin-1"), headers, length, not length, not http11)
        if len(picked) != (1 if text is None else 2) or not http11 or method == "CONNECT":
            consider(request, picked)
            if request.length is None:
                self._chunks = Chunks(self._limits)
            if request.offers_http2:
                self.offered = request
        self.arrived.append(request)
        if not request.complete:
            self.open = request
        elif not request.keep_alive:
            self.ended = True
        return request

    # Bodies

    def _read_body(self, data: bytes | bytearray, view: memoryview, at: int, size: int) -> int:
        request = self.open
        assert request is not None
        if request.length is None:
            return self._read_chunks(request, data, view, at, size)
        left = request.length - request.received
        stop = at + left if left < size - at else size
        if self._body_is_ours:
            request.pieces.append(bytes(view[at:stop]))
        else:
            self._feed_llhttp(view[at:stop])
            request.pieces.append(self._pieces.pop())
        brought = stop - at
        request.received += brought
        request.unread += brought
        self.unread += brought
        if brought == left:
            self._end_body(request)
        return stop

    def _read_chunks(
        self, request: Request, data: bytes | bytearray, view: memoryview, at: int, size: int
    ) -> int:
        chunks = self._chunks
        assert chunks is not None
        try:
            stop = chunks.feed(data, view, at, size, request.pieces)
        finally:  # what came before a mistake is body all the same
            brought = chunks.decoded - request.received
            request.received += brought
            request.unread += brought
            self.unread += brought
        if chunks.complete:
            self._chunks = None
            self._http = httptools.HttpRequestParser(self)  # the old one still waits for that body
            self._end_body(request)
        return stop

    def _end_body(self, request: Request) -> None:
        request.complete = True
        self.open = None
        if not request.keep_alive:
            self.ended = True

    # Called by httptools.

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        value = value.rstrip()
        if name in PICKED:
            picked = self._picked
            picked[name] = b"%b, %b" % (picked[name], value) if name in picked else value
            if name == _LENGTH:
                return
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._heads_complete = True
