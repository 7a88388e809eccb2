from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fastllm_proxy.errors import Refused
from fastllm_proxy.heads import PIPELINED_REQUESTS, ConnectionLimits, Request
from fastllm_proxy.request_parser import RequestParser

LIMITS = ConnectionLimits(head_bytes=1_000, head_fields=10)
START = b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\n"
GET = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKED = START + b"Transfer-Encoding: chunked\r\n\r\n"


def feed(parser: RequestParser, data: bytes) -> None:
    """As a connection does, with a buffer that is used again."""
    buffer = bytearray(data + b"\xaa" * 3)
    parser.feed(buffer, memoryview(buffer), len(data))
    buffer[:] = b"\xbb" * len(buffer)


def arrived(*parts: bytes, limits: ConnectionLimits = LIMITS) -> list[Request | Refused]:
    """What has arrived after `parts`, taken as it comes."""
    parser = RequestParser(limits)
    taken: list[Request | Refused] = []
    for part in parts:
        feed(parser, part)
        while parser.arrived:
            taken.append(parser.arrived.popleft())
            parser.go_on()
    return taken


def shown(arrivals: Sequence[Request | Refused]) -> list[Any]:
    """What two parsers have to agree on."""
    return [
        arrival.status
        if isinstance(arrival, Refused)
        else (
            arrival.method,
            arrival.target,
            arrival.headers,
            arrival.keep_alive,
            b"".join(arrival.pieces),
            arrival.complete,
            arrival.failure and arrival.failure.status,
        )
        for arrival in arrivals
    ]


def one(data: bytes) -> Request:
    (request,) = arrived(data)
    assert isinstance(request, Request), request.status
    return request


def test_a_request_says_what_it_is() -> None:
    request = one(
        b"PUT /a?b HTTP/1.1\r\nHOST: x\r\nX-Request-Id: r\r\nExpect: 100-Continue\r\nA:  b\tc \t\r\nA:\r\n"
        b"Content-Encoding: gzip\r\nContent-Length: 0003\r\n\r\nab"
    )
    assert (request.method, request.target, request.length) == ("PUT", "/a?b", 3)
    assert request.headers == (
        (b"host", b"x"),
        (b"x-request-id", b"r"),
        (b"expect", b"100-Continue"),
        (b"a", b"b\tc"),
        (b"a", b""),
        (b"content-encoding", b"gzip"),
    )
    assert (request.request_id, request.encoding, request.expects_continue) == (b"r", b"gzip", True)
    assert (request.received, request.unread, request.pieces, request.complete) == (2, 2, [b"ab"], False)
    assert not request.old


@pytest.mark.parametrize(
    ("head", "keep_alive"),
    [
        (START, True),
        (START + b"Connection: keep-alive\r\n", True),
        (START + b"Connection: close\r\n", False),
        (START + b"Connection: Keep-Alive, CLOSE\r\n", False),
        (START + b"Connection: a\r\nConnection: close\r\n", False),
        (START + b"Connection: upgrade\r\nUpgrade: websocket\r\n", False),
        (START + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n", True),
        (START + b"Upgrade: websocket\r\n", True),
        (b"CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n", False),
        (b"GET / HTTP/1.0\r\n", False),
        (b"GET / HTTP/1.0\r\nHost: x\r\nConnection: Keep-Alive\r\n", True),
        (b"GET / HTTP/1.0\r\nConnection: keep-alive, close\r\n", False),
    ],
)
def test_whether_the_connection_may_be_kept(head: bytes, keep_alive: bool) -> None:
    request = one(head + b"\r\n")
    assert request.keep_alive is keep_alive
    assert request.old is (b"HTTP/1.0" in head)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (START + b"A: " + b"b" * 900 + b"\r\n\r\n", None),
        (START + b"Transfer-Encoding: Chunked\r\n\r\n", None),
        (b"POST / HTTP/1.0\r\nContent-Length: 3\r\n\r\n", None),
        (b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", None),
        (b"GET  /  HTTP/1.1\r\nHost: x\r\n\r\n", None),
        (START + (b"A: " + b"b" * 500 + b"\r\n") * 2 + b"\r\n", 431),
        (START + b"A: " + b"b" * 1_001 + b"\r\n\r\n", 431),
        (START + b"A: " + b"b" * 1_001, 431),
        (START + b"A: b\r\n" * 10 + b"\r\n", 431),
        (b"POST /" + b"a" * 995 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431),
        (START + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 400),
        (START + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (START + b"Content-Length: %b3\r\n\r\n" % (b"0" * 500), 400),
        (START + b"Authorization : Bearer sk-secret\r\n\r\n", 400),
        (b"GET * HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET / RTSP/1.0\r\nHost: x\r\n\r\n", 400),
        (b"SOURCE / ICE/1.0\r\nHost: x\r\n\r\n", 400),
        (b"\nGET / HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"\rGET / HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"\r\n\nGET / HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"GET / HTTP/1.0\r\nHost: x\r\nHost: x\r\n\r\n", 400),
        (b"\x16\x03\x01", 400),
        (b"GET /\xff", 400),
    ],
)
def test_heads_that_are_served_and_heads_that_are_not(head: bytes, status: int | None) -> None:
    for parts in ([head], [bytes((byte,)) for byte in head]):
        (arrival,) = arrived(*parts)
        assert (arrival.status if isinstance(arrival, Refused) else None) == status
        if isinstance(arrival, Refused):
            assert "sk-secret" not in arrival.message


def test_a_refusal_ends_the_parsing_and_takes_the_place_of_its_own_request() -> None:
    parser = RequestParser(LIMITS)
    feed(parser, GET + CHUNKED + b"zz\r\n" + GET)
    assert shown(parser.arrived) == [shown([one(GET)])[0], 400]
    assert parser.ended
    assert parser.unread == 0


def test_whoever_reads_a_body_that_turns_malformed_is_told() -> None:
    parser = RequestParser(LIMITS)
    feed(parser, CHUNKED + b"1\r\na\r\n")
    request = parser.arrived.popleft()
    assert isinstance(request, Request)
    feed(parser, b"1\r\nb\r\nzz\r\n" + GET)
    assert not parser.arrived
    assert request.failure is not None
    assert request.pieces == [b"a", b"b"]  # what came before the mistake can be read


@pytest.mark.parametrize("line", [START, START.replace(b"HTTP/1.1", b"HTTP/1.0")])
def test_what_is_behind_the_last_request_is_nothing_however_it_comes(line: bytes) -> None:
    last = line + b"Connection: close\r\nContent-Length: 1\r\n\r\n"
    for pieces in ((last + b"a" + GET,), (last, b"a" + GET), (last + b"a", GET), (last + b"a\r\n",)):
        (request,) = arrived(*pieces)
        assert isinstance(request, Request)
        assert (request.complete, request.pieces) == (True, [b"a"])


@pytest.mark.parametrize("protocol", [b"websocket", b"h2c", b"TLS/1.0"])
@pytest.mark.parametrize("body", [b"", b"Content-Length: 2\r\n", b"Transfer-Encoding: chunked\r\n"])
def test_behind_another_protocol_nothing_is_a_request(protocol: bytes, body: bytes) -> None:
    data = START + b"Connection: Upgrade\r\nUpgrade: " + protocol + b"\r\n" + body + b"\r\n"
    data += b"{}" if b"Length" in body else b"2\r\n{}\r\n0\r\n\r\n" if body else b""
    (request,) = arrived(data + GET, GET)
    assert isinstance(request, Request)
    assert b"".join(request.pieces) == (b"{}" if body else b"")
    assert request.complete


def test_an_offer_of_http2_that_is_answered_leaves_http1_to_go_on() -> None:
    parser = RequestParser(LIMITS)
    for _ in range(3):
        feed(parser, START + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\n{}\r\n")
        request = parser.arrived.popleft()
        assert isinstance(request, Request)
        assert request.complete
        assert not parser.ended
        parser.offered = None


def test_trailers_go_nowhere() -> None:
    first, second = arrived(CHUNKED + b"1\r\na\r\n0\r\nX-Kept: by the parser\r\n\r\n" + GET)
    assert isinstance(first, Request)
    assert isinstance(second, Request)
    assert [name for name, _ in first.headers] == [b"host", b"transfer-encoding"]
    assert second.headers == ((b"host", b"x"),)


def test_only_so_many_requests_are_parsed_ahead() -> None:
    parser = RequestParser(LIMITS)
    feed(parser, GET * 100)
    assert len(parser.arrived) == PIPELINED_REQUESTS
    assert parser.rest is not None
    feed(parser, GET[:5])
    assert len(parser.rest) == len(GET) * (100 - PIPELINED_REQUESTS) + 5
    count = 0
    while parser.arrived:
        assert isinstance(parser.arrived.popleft(), Request)
        count += 1
        parser.go_on()
    assert count == 100
    assert parser.partial == GET[:5]


def test_a_head_that_is_repeated_means_the_same_again() -> None:
    coded = START + b"X-Request-Id: r\r\nContent-Encoding: gzip\r\nExpect: 100-continue\r\n"
    sized = coded + b"Content-Length: 3\r\n\r\n"
    stream = (sized + b"abc" + sized + b"de\n" + GET + GET + CHUNKED + b"0\r\n\r\n") * 2
    stream += sized[:-2] + b"Connection: close\r\n\r\nghi"
    for parts in ([stream], [bytes((byte,)) for byte in stream], _cut(stream, list(range(0, 2_000, 97)))):
        parser = RequestParser(LIMITS)
        for part in parts:
            feed(parser, part)
        requests = [r for r in parser.arrived if isinstance(r, Request)]
        assert len(requests) == 11
        assert [b"".join(r.pieces) for r in requests if r.encoding] == [b"abc", b"de\n"] * 2 + [b"ghi"]
        assert all(r.request_id == b"r" and r.expects_continue for r in requests if r.encoding)
        assert [r.complete for r in requests] == [True] * 11
        assert [r.keep_alive for r in requests] == [True] * 10 + [False]
        assert len({id(r.pieces) for r in requests}) == 11


def test_a_repeated_head_with_more_in_it_is_another() -> None:
    parser = RequestParser(LIMITS)
    feed(parser, GET + GET[:-2])
    assert len(parser.arrived) == 1
    feed(parser, b"A: b\r\n\r\n" + GET)
    assert [len(r.headers) for r in parser.arrived if isinstance(r, Request)] == [1, 2, 1]


def test_a_parser_is_let_go_without_the_collector() -> None:
    parser = RequestParser(LIMITS)
    feed(parser, GET)
    parser.close()
    feed(parser, GET)
    assert len(parser.arrived) == 1


# Whatever the cuts

BODIES = st.binary(max_size=40)


def _sized(body: bytes) -> bytes:
    return START + b"Content-Length: %d\r\n\r\n" % len(body) + body


def _in_chunks(body: bytes) -> bytes:
    pieces = [body[at : at + 7] for at in range(0, len(body), 7)]
    return CHUNKED + b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in pieces) + b"0\r\nT: r\r\n\r\n"


def _cut(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted({cut % (len(data) + 1) for cut in cuts}), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def test_a_request_cut_at_every_byte_is_the_same() -> None:
    for data in (GET, b"\r\n" + _sized(b"\r\n\r\nbody"), _in_chunks(b"0\r\n\r\n and more than that")):
        whole = shown(arrived(data + GET))
        assert len(whole) == 2
        for cut in range(1, len(data)):
            assert shown(arrived(data[:cut], data[cut:] + GET)) == whole


@given(st.lists(st.one_of(BODIES.map(_sized), BODIES.map(_in_chunks)), max_size=4), st.lists(st.integers(0)))
def test_pipelined_requests_arrive_in_order_however_they_are_cut(data: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(data) + GET
    whole = shown(arrived(stream))
    assert len(whole) == len(data) + 1
    assert shown(arrived(*_cut(stream, cuts))) == whole
    assert shown(arrived(*[bytes((byte,)) for byte in stream])) == whole


FRAGMENTS = st.sampled_from(
    [
        *(START, GET, CHUNKED, b"\r\n", b"\n", b"\r", b"\x00", b" ", b":", b"0\r\n\r\n", b"4\r\nabcd\r\n"),
        *(b"Content-Length: 3\r\n", b"Connection: close\r\n", b"Upgrade: h2c\r\nConnection: upgrade\r\n"),
        *(
            b"Transfer-Encoding: chunked\r\n",
            b"abc",
            b"HTTP/1.1",
            b"CONNECT a:80 ",
            b"PRI * HTTP/2.0\r\n\r\n",
        ),
    ]
)
NOISE = st.lists(st.one_of(FRAGMENTS, st.binary(max_size=20)), max_size=12).map(b"".join)


@given(NOISE, st.lists(st.integers(0), max_size=5))
@example(CHUNKED + b"0\r\n\r", [])
@example(b"\r", [0])
def test_noise_is_parsed_or_refused_and_never_more(noise: bytes, cuts: list[int]) -> None:
    parser = RequestParser(LIMITS)
    for part in _cut(noise, cuts):
        if not parser.ended:
            feed(parser, part)
    refusals = [arrival for arrival in parser.arrived if isinstance(arrival, Refused)]
    assert all(refused.status in (400, 431) for refused in refusals)
    assert len(refusals) <= 1
    assert not refusals or (parser.ended and parser.arrived[-1] is refusals[0])
    assert parser.unread == sum(r.unread for r in parser.arrived if isinstance(r, Request))
