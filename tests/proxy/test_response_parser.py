from __future__ import annotations

import gc
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastllm_proxy.errors import BadResponse, ConnectionReset
from fastllm_proxy.response_parser import MAX_HEAD_BYTES, MAX_HEADERS, MAX_INTERIM, ResponseParser

OK = b"HTTP/1.1 200 OK\r\n"
TWO = OK + b"Content-Length: 2\r\n\r\nhi"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
HI = b"2\r\nhi\r\n"
END = b"0\r\n\r\n"
EARLY = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"


def parsed(*pieces: bytes, bodyless: bool = False) -> tuple[ResponseParser, bytes]:
    """The parser after these pieces, and the body that it found."""
    parser = ResponseParser()
    parser.begin(bodyless=bodyless)
    body = b""
    for piece in pieces:
        parser.feed(piece)
        body += parser.take()
    return parser, body


def refused(*pieces: bytes) -> str:
    with pytest.raises(BadResponse) as caught:
        parsed(*pieces)
    return str(caught.value)


COMPLETE = {
    "length": (TWO, b"hi"),
    "empty": (OK + b"Content-Length: 0\r\n\r\n", b""),
    "no reason": (b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nhi", b"hi"),
    "empty header": (OK + b"A:\r\nContent-Length: 2\r\n\r\nhi", b"hi"),
    "chunked": (CHUNKED + HI + HI + END, b"hihi"),
    "chunked, no body": (CHUNKED + END, b""),
    "coding in capitals": (OK + b"Transfer-Encoding: CHUNKED\r\n\r\n" + HI + END, b"hi"),
    "long last chunk": (CHUNKED + HI + b"0000\r\n\r\n", b"hi"),
    "chunk extension": (CHUNKED + b'2;a="b"\r\nhi\r\n0;c\r\n\r\n', b"hi"),
    "trailers": (CHUNKED + HI + b"0\r\nX-Sum: 1\r\nX-Empty:\r\n\r\n", b"hi"),
    "line ends as body": (OK + b"Content-Length: 4\r\n\r\n\r\n\r\n", b"\r\n\r\n"),
    "line ends in chunks": (CHUNKED + b"4\r\n\r\n\r\n\r\n" + END, b"\r\n\r\n"),
    "looks like the end": (CHUNKED + b"5\r\n0\r\n\r\n\r\n" + END, b"0\r\n\r\n"),
    "204": (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    "304 of something long": (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 999\r\n\r\n", b""),
    "304 of something chunked": (b"HTTP/1.1 304 Not Modified\r\nTransfer-Encoding: chunked\r\n\r\n", b""),
    "interim": (EARLY + TWO, b"hi"),
    "two interim": (b"HTTP/1.1 100 Continue\r\n\r\n" + EARLY + CHUNKED + HI + END, b"hi"),
    "1.0 that keeps alive": (
        b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nhi",
        b"hi",
    ),
}


@pytest.mark.parametrize(("wire", "body"), COMPLETE.values(), ids=COMPLETE)
def test_complete_and_reusable(wire: bytes, body: bytes) -> None:
    parser, found = parsed(wire)
    assert found == body
    assert parser.complete
    assert parser.reusable
    assert parser.received == len(wire)
    parser.end_of_stream()


@pytest.mark.parametrize(("wire", "body"), COMPLETE.values(), ids=COMPLETE)
def test_the_same_at_every_single_split(wire: bytes, body: bytes) -> None:
    whole, _ = parsed(wire)
    for place in range(1, len(wire)):
        parser, found = parsed(wire[:place], wire[place:])
        assert (found, parser.head, parser.complete) == (body, whole.head, True), place
        assert parser.reusable, place


@pytest.mark.parametrize("wire", [wire for wire, _ in COMPLETE.values()], ids=COMPLETE)
@given(st.data())
def test_the_same_in_any_pieces_and_a_second_time(wire: bytes, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(wire)), max_size=8).map(sorted))
    pieces = [wire[a:b] for a, b in zip([0, *cuts], [*cuts, len(wire)], strict=True) if a != b]
    once, body = parsed(wire)
    parser = ResponseParser()
    for _ in range(2):
        parser.begin()
        found = b""
        for piece in pieces:
            assert not parser.complete
            parser.feed(piece)
            found += parser.take()
        assert (found, parser.head, parser.reusable) == (body, once.head, True)


@pytest.mark.parametrize("wire", [wire for wire, _ in COMPLETE.values()], ids=COMPLETE)
@pytest.mark.parametrize(
    "stray", [b"\n", b"\r\n", b"\r\n\r\n", b"0\r\n\r\n", b"x", TWO, b"HTTP/1.1 408 X\r\n"]
)
@pytest.mark.parametrize("together", [True, False])
def test_any_byte_beyond_the_end_ends_the_reuse(wire: bytes, stray: bytes, together: bool) -> None:
    body = parsed(wire)[1]
    for place in (len(wire), len(wire) - 1, len(wire) - 3):
        pieces = [wire[:place], wire[place:] + stray] if together else [wire[:place], wire[place:], stray]
        parser, found = parsed(*filter(None, pieces))
        assert parser.complete
        assert not parser.reusable
        assert found == body


def test_a_body_that_was_not_taken_is_gone() -> None:
    parser = ResponseParser()
    parser.begin()
    parser.feed(TWO)
    parser.begin()
    parser.feed(TWO)
    assert parser.take() == b"hi"


def test_headers_as_they_are_handed_on() -> None:
    parser, _ = parsed(OK + b"X-A:  one  \r\nx-a: two\t\r\nX-B: \xe9\r\nContent-Length: 2\r\n\r\nhi")
    assert parser.head is not None
    assert parser.head.headers == (
        (b"x-a", b"one"),
        (b"x-a", b"two"),
        (b"x-b", b"\xe9"),
    )
    assert parser.head.content_length == 2
    assert parser.head.status == 200


def test_interim_headers_and_trailers_are_not_handed_on() -> None:
    parser, _ = parsed(EARLY + CHUNKED + HI + b"0\r\nX-Sum: 1\r\n\r\n")
    assert parser.head is not None
    assert parser.head.headers == ((b"transfer-encoding", b"chunked"),)
    assert parser.head.content_length is None


CLOSING = {
    "connection: close": OK + b"Connection: close\r\nContent-Length: 2\r\n\r\nhi",
    "close among others": OK + b"Connection: keep-alive, close\r\nContent-Length: 2\r\n\r\nhi",
    "1.0": b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi",
    "chunked and close": OK + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + HI + END,
}


@pytest.mark.parametrize("wire", CLOSING.values(), ids=CLOSING)
def test_complete_but_not_kept(wire: bytes) -> None:
    parser, body = parsed(wire)
    assert body == b"hi"
    assert parser.complete
    assert not parser.reusable


def test_a_body_until_the_connection_closes() -> None:
    parser, body = parsed(OK + b"\r\nhi", b" there\r\n\r\n")
    assert body == b"hi there\r\n\r\n"
    open_ended = parser.complete
    parser.end_of_stream()
    assert (open_ended, parser.complete, parser.reusable) == (False, True, False)


UNFINISHED = {
    "nothing": b"",
    "half a head": OK + b"Content-Le",
    "an interim one": EARLY,
    "a byte of the length short": TWO[:-1],
    "no body yet": TWO[:-2],
    "chunk": CHUNKED + HI,
    "last chunk": CHUNKED + HI + END[:-1],
    "trailer": CHUNKED + HI + b"0\r\nX: 1\r\n",
}


@pytest.mark.parametrize("wire", UNFINISHED.values(), ids=UNFINISHED)
def test_closing_before_the_end_is_an_error(wire: bytes) -> None:
    parser, _ = parsed(wire)
    with pytest.raises(ConnectionReset) as caught:
        parser.end_of_stream()
    assert caught.value.received == len(wire)
    assert not parser.complete


MALFORMED = {
    "not http": b"SSH-2.0-OpenSSH_9.9\r\n\r\n",
    "http/0.9": b"HTTP/0.9 200 OK\r\n\r\n",
    "http/2": b"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n",
    "rtsp": b"RTSP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
    "blank line first": b"\r\n" + TWO,
    "blank line after an interim one": EARLY + b"\r\n" + TWO,
    "101": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    "101 without upgrade": b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    "status 0": b"HTTP/1.1 000 X\r\nContent-Length: 0\r\n\r\n",
    "status 99": b"HTTP/1.1 099 X\r\nContent-Length: 0\r\n\r\n",
    "status 600": b"HTTP/1.1 600 X\r\nContent-Length: 0\r\n\r\n",
    "bare line feed": b"HTTP/1.1 200 OK\nContent-Length: 0\n\n",
    "bare line feed among headers": OK + b"A: b\nContent-Length: 0\r\n\r\n",
    "bare carriage return": OK + b"A: b\rContent-Length: 0\r\n\r\n",
    "folded header": OK + b"A: b\r\n c\r\nContent-Length: 0\r\n\r\n",
    "space before the colon": OK + b"Content-Length : 0\r\n\r\n",
    "space before the name": OK + b" Content-Length: 0\r\n\r\n",
    "no name": OK + b": x\r\nContent-Length: 0\r\n\r\n",
    "nul": OK + b"A: b\0c\r\nContent-Length: 0\r\n\r\n",
    "two lengths": OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nhi",
    "the same length twice": OK + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\nhi",
    "a list of lengths": OK + b"Content-Length: 2, 2\r\n\r\nhi",
    "signed length": OK + b"Content-Length: +2\r\n\r\nhi",
    "hexadecimal length": OK + b"Content-Length: 0x2\r\n\r\nhi",
    "no length in it": OK + b"Content-Length:\r\n\r\nhi",
    "length beyond 64 bits": OK + b"Content-Length: 99999999999999999999\r\n\r\nhi",
    "length and coding": OK + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n" + HI + END,
    "coding and length": OK + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n" + HI + END,
    "gzip": OK + b"Transfer-Encoding: gzip\r\n\r\nhi",
    "gzip, chunked": OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + HI + END,
    "chunked, gzip": OK + b"Transfer-Encoding: chunked, gzip\r\n\r\n" + HI + END,
    "chunked, chunked": OK + b"Transfer-Encoding: chunked, chunked\r\n\r\n" + HI + END,
    "chunked twice": OK + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n" + HI + END,
    "identity": OK + b"Transfer-Encoding: identity\r\n\r\nhi",
    "no coding in it": OK + b"Transfer-Encoding:\r\n\r\nhi",
    "chunked with a parameter": OK + b"Transfer-Encoding: chunked;q=1\r\n\r\n" + HI + END,
    "chunked under 1.0": b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + HI + END,
    "size with a space": CHUNKED + b"2 \r\nhi\r\n",
    "size with a prefix": CHUNKED + b"0x2\r\nhi\r\n",
    "negative size": CHUNKED + b"-2\r\nhi\r\n",
    "size beyond 64 bits": CHUNKED + b"fffffffffffffffff\r\nhi\r\n",
    "size that is too small": CHUNKED + b"1\r\nhi\r\n",
    "size that is too large": CHUNKED + b"3\r\nhi\r\n0\r\n\r\n",
    "chunk ended by a line feed": CHUNKED + b"2\r\nhi\n0\r\n\r\n",
    "size ended by a line feed": CHUNKED + b"2\nhi\r\n0\r\n\r\n",
    "length among trailers": CHUNKED + HI + b"0\r\nContent-Length: 2\r\n\r\n",
    "folded trailer": CHUNKED + HI + b"0\r\nX: 1\r\n 2\r\n\r\n",
}


@pytest.mark.parametrize("wire", MALFORMED.values(), ids=MALFORMED)
def test_refused_whole_and_byte_by_byte(wire: bytes) -> None:
    assert refused(wire)
    assert refused(*(wire[place : place + 1] for place in range(len(wire))))


def test_body_before_a_bad_chunk_is_not_lost() -> None:
    parser = ResponseParser()
    parser.begin()
    with pytest.raises(BadResponse):
        parser.feed(CHUNKED + HI + b"zz\r\n")
    assert parser.take() == b"hi"


@pytest.mark.parametrize("pieces", [1, 7])
def test_a_head_may_be_as_large_as_the_limit_but_no_larger(pieces: int) -> None:
    frame = OK + b"Content-Length: 0\r\nX: \r\n\r\n"
    fits = OK + b"Content-Length: 0\r\nX: " + b"x" * (MAX_HEAD_BYTES - len(frame)) + b"\r\n\r\n"
    step = len(fits) // pieces + 1
    parser, _ = parsed(*(fits[i : i + step] for i in range(0, len(fits), step)))
    assert parser.reusable
    over = fits.replace(b"X: ", b"X: y")
    assert "65536" in refused(*(over[i : i + step] for i in range(0, len(over), step)))


def test_a_head_without_end_is_refused_before_it_is_kept() -> None:
    parser, _ = parsed(OK + b"X: ", *([b"x" * 10_000] * 6))
    with pytest.raises(BadResponse, match="65536"):
        parser.feed(b"x" * 10_000)


def test_interim_heads_count_towards_the_limit() -> None:
    large = b"HTTP/1.1 103 Early Hints\r\nLink: " + b"x" * 30_000 + b"\r\n\r\n"
    parser, _ = parsed(large, large, TWO)
    assert parser.reusable
    refused(large, large, large, TWO)


def test_as_many_headers_as_the_limit_but_no_more() -> None:
    def wire(count: int) -> bytes:
        lines = b"".join(b"x-%d: 1\r\n" % number for number in range(count - 1))
        return OK + lines + b"Content-Length: 0\r\n\r\n"

    parser, _ = parsed(wire(MAX_HEADERS))
    assert parser.reusable
    assert "128" in refused(wire(MAX_HEADERS + 1))
    refused(OK + b"a: b\r\n" * 20_000 + b"\r\n")


def test_a_few_interim_responses_but_no_flood() -> None:
    parser, _ = parsed(EARLY * MAX_INTERIM + TWO)
    assert parser.reusable
    assert "interim" in refused(EARLY * (MAX_INTERIM + 1))
    assert "interim" in refused(*([EARLY] * (MAX_INTERIM + 1)))


def test_every_response_may_have_its_interim_ones() -> None:
    parser = ResponseParser()
    for _ in range(3):
        parser.begin()
        parser.feed(EARLY * MAX_INTERIM + TWO)
        assert parser.take() == b"hi"
        assert parser.reusable


@pytest.mark.parametrize(
    ("opening", "more"),
    [
        (CHUNKED + HI + b"0\r\n", b"X-Trailer: " + b"x" * 1000 + b"\r\n"),
        (CHUNKED + HI + b"0\r\nX: ", b"x" * 1000),
        (CHUNKED + b"2;", b"x" * 1000),
    ],
    ids=["trailers", "one trailer", "extension"],
)
def test_framing_without_end_is_refused(opening: bytes, more: bytes) -> None:
    with pytest.raises(BadResponse, match="without end"):
        parsed(opening, *([more] * 100))


def test_many_small_chunks_are_no_framing_without_end() -> None:
    parser, body = parsed(CHUNKED, *([b"1;" + b"x" * 100 + b"\r\na\r\n"] * 2000), END)
    assert len(body) == 2000
    assert parser.reusable


@pytest.mark.parametrize("line", [b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b""])
def test_a_head_request_has_no_body(line: bytes) -> None:
    parser = ResponseParser()
    for _ in range(2):
        parser.begin(bodyless=True)
        parser.feed(OK + line + b"\r\n")
        assert parser.complete
        assert parser.head is not None
        assert parser.head.content_length == 0
        assert parser.reusable is (line != b"")
    if line:
        parser.begin()
        parser.feed(TWO)
        assert parser.take() == b"hi"
        assert parser.reusable


def test_a_body_after_a_head_request_is_excess() -> None:
    parser, body = parsed(TWO, bodyless=True)
    assert parser.complete
    assert body == b""
    assert not parser.reusable


@pytest.mark.parametrize("line", [b"Content-Length: 2\r\n", b"Transfer-Encoding: chunked\r\n"])
def test_a_204_that_announces_a_body_is_not_trusted_further(line: bytes) -> None:
    parser, _ = parsed(b"HTTP/1.1 204 No Content\r\n" + line + b"\r\n")
    assert parser.complete
    assert not parser.reusable


def test_body_begun() -> None:
    parser, _ = parsed(EARLY, TWO[:-2])
    assert not parser.body_begun
    parser.feed(b"h")
    assert parser.body_begun


def test_nothing_refers_in_a_circle_once_closed() -> None:
    class Watched(ResponseParser):
        __slots__ = ("__weakref__",)

    gc.disable()
    try:
        parser = Watched()
        parser.begin()
        parser.feed(TWO)
        parser.close()
        watch = weakref.ref(parser)
        del parser
        assert watch() is None
    finally:
        gc.enable()
