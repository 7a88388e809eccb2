"""Where one request ends and the next begins: whatever others might read differently is refused, and a
request hidden behind it never reaches the engine. What goes to the engine is framed by one length and nothing
else (`Target.is_well` checks that of every request)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.integration.http.hostile import (
    AUTH,
    BODY,
    CHAT,
    CHUNKED,
    HIDDEN,
    HIDDEN_UPSTREAM,
    HOST,
    LAST_CHUNK,
    UPSTREAM_BODY,
    check_error,
    chunks,
    length_of,
    refused,
    request,
    under_attack,
)

CODED: Final = b"Transfer-Encoding: "
OLD_LINE: Final = b"POST " + CHAT + b" HTTP/1.0\r\n"


def _sized(value: bytes, *fields: bytes) -> bytes:
    """Announces a length in odd words; what follows is a body of the length that was meant."""
    return request(b"Content-Length:" + value + b"\r\n", *fields, body=None) + BODY


def _coded(value: bytes, *fields: bytes) -> bytes:
    return request(CODED + value + b"\r\n", *fields, body=None) + chunks(BODY)


N: Final = b"%d" % len(BODY)

LENGTHS: Final = {
    "two lengths": _sized(b" " + N, b"Content-Length: 3\r\n"),
    "two lengths, the right one last": _sized(b" 0", length_of(BODY)),
    "the same length twice": _sized(b" " + N, length_of(BODY)),
    "a list of lengths": _sized(b" " + N + b", " + N),
    "a list of different lengths": _sized(b" 0," + N),
    "a list with one length": _sized(b" " + N + b","),
    "a negative length": _sized(b" -1"),
    "a signed length": _sized(b" +" + N),
    "a hexadecimal length": _sized(b" 0x10"),
    "a hexadecimal length without a mark": _sized(b" 1F"),
    "a length with a fraction": _sized(b" " + N + b".0"),
    "a length with an exponent": _sized(b" 1e2"),
    "a length with an underscore": _sized(b" 1_0"),
    "a length within which a space stands": _sized(b" 1 0"),
    "a length in quotes": _sized(b' "' + N + b'"'),
    "a length in arabic digits": _sized(b" \xd9\xa1"),
    "a length with a tail": _sized(b" " + N + b"a"),
    "a length behind a vertical tab": _sized(b" \x0b" + N),
    "no length in the length": _sized(b""),
    "a length of 2 to the 64th": _sized(b" 18446744073709551616"),
    "a length of 30 digits": _sized(b" " + b"9" * 30),
    "a folded length": _sized(b"\r\n " + N),
    "a space before the length's colon": request(b"Content-Length : " + N + b"\r\n", body=None) + BODY,
}

CODINGS: Final = {
    "length, then chunks": _coded(b"chunked").replace(HOST, HOST + b"Content-Length: 5\r\n"),
    "chunks, then length": _coded(b"chunked", b"Content-Length: 5\r\n"),
    "chunks and a length of zero": _coded(b"chunked", b"Content-Length: 0\r\n"),
    "length, and chunks with a space": _coded(b"chunked ", b"Content-Length: 5\r\n"),
    "length, and an unknown coding": _sized(b" " + N, CODED + b"identity\r\n"),
    "length, and an empty coding": _sized(b" " + N, CODED + b"\r\n"),
    "chunked twice in a list": _coded(b"chunked, chunked"),
    "chunked twice": _coded(b"chunked", CHUNKED),
    "gzip, then chunked": _coded(b"gzip, chunked"),
    "chunked, then gzip": _coded(b"chunked, gzip"),
    "chunked, then identity in a second header": _coded(b"chunked", CODED + b"identity\r\n"),
    "identity, then chunked in a second header": _coded(b"identity", CHUNKED),
    "identity": _coded(b"identity"),
    "an empty coding": _coded(b""),
    "xchunked": _coded(b"xchunked"),
    "chunkedx": _coded(b"chunkedx"),
    "chunked with a parameter": _coded(b"chunked;q=1"),
    "chunked in quotes": _coded(b'"chunked"'),
    "an empty element, then chunked": _coded(b", chunked"),
    "chunked, then an empty element": _coded(b"chunked,"),
    "chunked behind a vertical tab": _coded(b"\x0bchunked"),
    "chunked with a nul": _coded(b"chunked\x00"),
    "chunked with a long s-like letter": _coded(b"chun\xe2\x84\xaaed"),
    "a folded coding": _coded(b"\r\n chunked"),
    "chunked, folded": _coded(b"chunked\r\n "),
    "a space before the coding's colon": request(b"Transfer-Encoding : chunked\r\n", body=None)
    + chunks(BODY),
    "a coding behind a bare line feed": request(b"A: b\nTransfer-Encoding: chunked\r\n", body=None)
    + chunks(BODY),
    "a coding behind a bare carriage return": request(b"A: b\rTransfer-Encoding: chunked\r\n", body=None)
    + chunks(BODY),
    "chunks from http 1.0": request(CHUNKED, line=OLD_LINE, body=None) + chunks(BODY),
    "chunks from a kept http 1.0": request(CHUNKED, b"Connection: keep-alive\r\n", line=OLD_LINE, body=None)
    + chunks(BODY),
}

FRAMED: Final = request(CHUNKED, body=None)
PIECE: Final = b"%x\r\n%b" % (len(BODY), BODY)

BODIES: Final = {
    "a negative size": b"-1\r\n" + BODY + b"\r\n",
    "a signed size": b"+" + PIECE + b"\r\n",
    "a size with 0x": b"0x" + PIECE + b"\r\n",
    "a size that is none": b"canary\r\n",
    "an empty size": b"\r\n" + BODY + b"\r\n",
    "a space before the size": b" " + PIECE + b"\r\n",
    "an underscore in the size": b"1_0\r\n" + BODY + b"\r\n",
    "a size of 2 to the 64th": b"1" + b"0" * 16 + b"\r\n",
    "a size of 40 digits": b"f" * 40 + b"\r\n",
    "a size behind a line feed alone": b"%x\n%b\r\n" % (len(BODY), BODY),
    "a size behind a carriage return alone": b"%x\r%b\r\n" % (len(BODY), BODY),
    "no line end behind the data": PIECE + LAST_CHUNK,
    "a line feed alone behind the data": PIECE + b"\n" + LAST_CHUNK,
    "data longer than its size": b"5\r\n" + BODY + b"\r\n",
    "a nul in an extension": b"%x;a=\x00\r\n%b\r\n" % (len(BODY), BODY),
    "a line feed in an extension": b"%x;a=\n%b\r\n" % (len(BODY), BODY),
    "a carriage return in an extension": b"%x;a=\rb\r\n%b\r\n" % (len(BODY), BODY),
    "a line feed alone behind the last size": PIECE + b"\r\n0\n\r\n",
}


@pytest.mark.parametrize("bytewise", [False, True], ids=["whole", "bytewise"])
@pytest.mark.parametrize("case", [*LENGTHS, *CODINGS])
async def test_ambiguous_framing_is_refused_and_hides_no_request(
    tmp_path: Path, case: str, bytewise: bool
) -> None:
    async with under_attack(tmp_path) as target:
        data = (LENGTHS | CODINGS)[case]
        refused(await target.send(data + HIDDEN, bytewise=bytewise), 400, "malformed_request")
        head = data[: data.index(b"\r\n\r\n") + 4]  # without the body that somebody might look for
        refused(await target.send(head + HIDDEN, bytewise=bytewise), 400, "malformed_request")


@pytest.mark.parametrize("bytewise", [False, True], ids=["whole", "bytewise"])
@pytest.mark.parametrize("case", BODIES)
async def test_malformed_chunks_are_refused_and_hide_no_request(
    tmp_path: Path, case: str, bytewise: bool
) -> None:
    async with under_attack(tmp_path) as target:
        for framed, dialect in (
            (FRAMED, "openai"),
            (FRAMED.replace(CHAT, b"/v1/messages"), "anthropic"),
        ):
            answers = await target.send(framed + BODIES[case] + LAST_CHUNK + HIDDEN, bytewise=bytewise)
            if not bytewise and answers[0].status == 400 and b"malformed_request" in answers[0].body:
                dialect = "openai"  # known to be malformed before anything of the request was looked at
            refused(answers, 400, dialect=dialect)


@pytest.mark.parametrize("length", [2**62, 2**63 - 1, 2**63, 2**64 - 1])
async def test_a_length_that_nobody_can_send_is_too_large_and_hides_no_request(
    tmp_path: Path, length: int
) -> None:
    async with under_attack(tmp_path) as target:
        refused(await target.send(_sized(b" %d" % length) + HIDDEN), 413, "request_too_large")


@pytest.mark.parametrize(
    "piece", [b"ffffffffffffffff\r\n", b"7fffffffffffffff\r\n", b"400001\r\n"], ids=["2^64", "2^63", "4 MiB"]
)
async def test_a_chunk_that_nobody_may_send_is_refused_and_hides_no_request(
    tmp_path: Path, piece: bytes
) -> None:
    async with under_attack(tmp_path) as target:
        data = FRAMED + piece + b"canary" * 1_000_000
        refused(await target.send(data + HIDDEN), 413, "request_too_large")


@pytest.mark.parametrize("size", [100, 100_000])
async def test_chunk_extensions_are_skipped_or_refused_but_never_part_of_the_body(
    tmp_path: Path, size: int
) -> None:
    async with under_attack(tmp_path) as target:
        data = FRAMED + b"%x;a=%b\r\n%b\r\n" % (len(BODY), b"canary" * (size // 6), BODY) + LAST_CHUNK
        answers = await target.send(data + request(b"Connection: close\r\n", body=b"not json"))
        if answers[0].status == 200:
            target.expected = [UPSTREAM_BODY]
        else:
            assert size > 100
            check_error(answers[0], 400)


UNAMBIGUOUS: Final = {
    "chunked": request(CHUNKED, body=None) + chunks(BODY),
    "chunked in capitals": _coded(b"CHUNKED"),
    "chunked and a space": _coded(b"chunked "),
    "chunked behind many spaces": _coded(b" \t  chunked"),
    "sizes with zeros in front": FRAMED + b"0000" + PIECE + b"\r\n" + LAST_CHUNK,
    "sizes in capitals": FRAMED + b"%X\r\n%b\r\n" % (len(BODY), BODY) + LAST_CHUNK,
    "a chunk a byte": FRAMED + chunks(BODY, 1),
    "a length with a space behind it": _sized(b" " + N + b" "),
    "a length with a tab before it": _sized(b"\t" + N),
}


@pytest.mark.parametrize("case", UNAMBIGUOUS)
async def test_what_is_not_ambiguous_is_served_and_so_is_what_follows(tmp_path: Path, case: str) -> None:
    async with under_attack(tmp_path) as target, await target.connect() as client:
        await client.send(UNAMBIGUOUS[case])
        assert (await client.answer()).status == 200
        await client.send(HIDDEN)
        assert (await client.answer()).status == 200
        target.expected = [UPSTREAM_BODY, HIDDEN_UPSTREAM]


async def test_a_tab_behind_chunked_is_space_or_malformed(tmp_path: Path) -> None:
    async with under_attack(tmp_path) as target:
        answers = await target.send(_coded(b"chunked\t", b"Connection: close\r\n"))
        if answers[0].status == 200:
            target.expected = [UPSTREAM_BODY]
        else:
            refused(answers, 400, "malformed_request")


TRAILERS: Final = {
    "a length": b"Content-Length: 5\r\n",
    "a coding": CHUNKED,
    "a key": AUTH,
    "a host": b"Host: canary\r\n",
    "a request id": b"X-Request-Id: canary\r\n",
    "the hop count": b"X-Fastllm-Hop: 9\r\n",
}


@pytest.mark.parametrize("case", TRAILERS)
async def test_a_trailer_is_nothing(tmp_path: Path, case: str) -> None:
    """It neither completes its own request nor begins the next one, which is served or not at all."""
    ended = chunks(BODY).removesuffix(b"\r\n") + TRAILERS[case] + b"X-Trailer: canary\r\n\r\n"
    async with under_attack(tmp_path) as target:
        first = request(CHUNKED, body=None) + ended
        answers = await target.send(first + request(b"Connection: close\r\n", auth=b"", body=BODY))
        if answers[0].status == 200:
            target.expected = [UPSTREAM_BODY]
        else:  # framing and routing have no place in trailers
            assert TRAILERS[case] != AUTH
            refused(answers, 400, "malformed_request")
        for answer in answers[1:]:
            check_error(answer, 401, "invalid_api_key")
        without_key = request(CHUNKED, b"Connection: close\r\n", auth=b"", body=None) + ended
        (answer,) = await target.send(without_key)
        check_error(answer, answer.status)
        assert answer.status in (400, 401)


@pytest.mark.parametrize(
    "fields", [[b"A: " + b"canary" * 17_000], [b"X-%d: canary" % n for n in range(10_000)]]
)
async def test_endless_trailers_are_bounded_and_hide_no_request(tmp_path: Path, fields: list[bytes]) -> None:
    async with under_attack(tmp_path) as target:
        trailers = b"".join(field + b"\r\n" for field in fields)
        data = FRAMED + chunks(BODY).removesuffix(b"\r\n") + trailers + b"\r\n"
        answers = await target.send(data)
        assert len(answers) == 1
        assert answers[0].status in (400, 431)
        check_error(answers[0], answers[0].status)
