"""Requests that are no HTTP/1.1: each is refused once, in our shape, and nothing behind it is served."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.integration.http.hostile import (
    AUTH,
    BODY,
    CHAT,
    FOREIGN,
    HIDDEN,
    HOST,
    UPSTREAM_BODY,
    check_error,
    refused,
    request,
    under_attack,
)


def _line(line: bytes) -> bytes:
    return request(line=line + b"\r\n")


def _target(target: bytes) -> bytes:
    return _line(b"POST " + target + b" HTTP/1.1")


LINES: Final = {
    "http 0.9": b"GET /livez\r\n",
    "http 0.9 with headers": _line(b"POST " + CHAT),
    "http 1.2": _line(b"POST " + CHAT + b" HTTP/1.2"),
    "http 2.0": _line(b"POST " + CHAT + b" HTTP/2.0"),
    "http 11": _line(b"POST " + CHAT + b" HTTP/11"),
    "http 1.1 with a tail": _line(b"POST " + CHAT + b" HTTP/1.1x"),
    "version in lower case": _line(b"POST " + CHAT + b" http/1.1"),
    "another protocol": _line(b"POST " + CHAT + b" ICAP/1.0"),
    "http 2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
    "method in lower case": _line(b"post " + CHAT + b" HTTP/1.1"),
    "unknown method": _line(b"CANARY " + CHAT + b" HTTP/1.1"),
    "no method": _line(CHAT + b" HTTP/1.1"),
    "no target": _line(b"POST HTTP/1.1"),
    "a tab behind the method": _line(b"POST\t" + CHAT + b" HTTP/1.1"),
    "a space before the method": _line(b" POST " + CHAT + b" HTTP/1.1"),
    "a space within the target": _target(b"/v1/chat completions"),
    "nul in the target": _target(CHAT + b"\x00"),
    "a control byte in the target": _target(CHAT + b"\x01"),
    "delete in the target": _target(CHAT + b"\x7f"),
    "a bare line feed in the target": _target(CHAT + b"\n"),
    "a bare carriage return in the target": _target(CHAT + b"\rx"),
    "overlong utf-8 in the target": _target(b"/v1\xc0\xafchat/completions"),
    "latin-1 in the target": _target(CHAT + b"\xe9"),
    "latin-1 in the query": _target(CHAT + b"?a=\xff"),
    "a query alone": _target(b"?canary=1"),
    "an asterisk that is not for options": _target(b"*"),
    "a target without a slash": _target(b"v1/chat/completions"),
    "a backslash for the first slash": _target(b"\\v1\\chat\\completions"),
    "an authority for a target": _target(b"gateway:80"),
    "a status line": b"HTTP/1.1 200 OK\r\n" + HOST + FOREIGN + b"\r\n",
    "a secret alone": b"Bearer sk-canary-0123456789\r\n\r\n",
    "json alone": BODY + b"\r\n\r\n",
    "tls hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),
    "zeros": bytes(64),
    "ssh": b"SSH-2.0-canary\r\n\r\n",
    "proxy protocol": b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n" + request(),
    "proxy protocol 2": b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c" + bytes(12),
}

FIELDS: Final = {
    "no host": request(host=b""),
    "two hosts": request(b"Host: canary\r\n"),
    "the same host twice": request(HOST),
    "bare line feeds": request().replace(b"\r\n", b"\n"),
    "one bare line feed": request(b"A: b\nC: d\r\n"),
    "a bare line feed ends the head": request(body=None).removesuffix(b"\r\n") + b"\n",
    "a bare carriage return": request(b"A: b\rC: d\r\n"),
    "a carriage return too many": request(b"A: b\r\r\n"),
    "a folded value": request(b"A: b\r\n c\r\n"),
    "a value folded by a tab": request(b"A: b\r\n\tc\r\n"),
    "an empty folded line": request(b"A: b\r\n \r\n"),
    "a folded first line": request(line=b"POST " + CHAT + b" HTTP/1.1\r\n A: b\r\n"),
    "a folded key": request(auth=AUTH.replace(b"Bearer ", b"Bearer\r\n ")),
    "nul in a value": request(b"A: b\x00c\r\n"),
    "a control byte in a value": request(b"A: b\x01c\r\n"),
    "delete in a value": request(b"A: b\x7fc\r\n"),
    "nul in a name": request(b"A\x00: b\r\n"),
    "a control byte in a name": request(b"A\x02: b\r\n"),
    "latin-1 in a name": request(b"\xe9: b\r\n"),
    "a quote in a name": request(b'A"b: c\r\n'),
    "a slash in a name": request(b"A/b: c\r\n"),
    "brackets in a name": request(b"A[b]: c\r\n"),
    "a space in a name": request(b"A b: c\r\n"),
    "a space before the colon": request(b"A : b\r\n"),
    "a tab before the colon": request(b"A\t: b\r\n"),
    "an empty name": request(b": canary\r\n"),
    "no colon": request(b"canary\r\n"),
}

TOO_LARGE: Final = {
    "a header of 100 KB": request(b"A: " + b"canary" * 17_000 + b"\r\n"),
    "a name of 100 KB": request(b"canary" * 17_000 + b": a\r\n"),
    "an unfinished header of 100 KB": request(b"A: " + b"canary" * 17_000)[:90_000],
    "10,000 headers": request(*(b"X-%d: canary\r\n" % n for n in range(10_000))),
    "10,000 headers without a value": request(*(b"X:\r\n" for _ in range(10_000))),
    "many headers of 33 KiB together": request(
        *(b"X-%03d: %b\r\n" % (n, b"canary" * 25) for n in range(210))
    ),
    "a request line of 100 KB": _target(CHAT + b"?" + b"canary" * 17_000),
    "a path of 100 KB": _target(b"/" + b"canary" * 17_000),
    "an unfinished request line of 100 KB": _target(b"/" + b"canary" * 17_000)[:90_000],
    "target and headers of 33 KiB together": _target(CHAT + b"?" + b"a" * 17_000).replace(
        FOREIGN, FOREIGN + b"A: " + b"canary" * 2_800 + b"\r\n"
    ),
    "a key of 40 KB": request(auth=b"Authorization: Bearer " + b"canary" * 7_000 + b"\r\n"),
}


@pytest.mark.parametrize("bytewise", [False, True], ids=["whole", "bytewise"])
@pytest.mark.parametrize("case", [*LINES, *FIELDS])
async def test_what_is_not_http_is_refused_once_and_hides_no_request(
    tmp_path: Path, case: str, bytewise: bool
) -> None:
    async with under_attack(tmp_path) as target:
        answers = await target.send((LINES | FIELDS)[case] + HIDDEN, bytewise=bytewise)
        refused(answers, 400, "malformed_request")


@pytest.mark.parametrize("case", TOO_LARGE)
async def test_too_large_a_head_is_431_and_hides_no_request(tmp_path: Path, case: str) -> None:
    async with under_attack(tmp_path) as target:
        refused(await target.send(TOO_LARGE[case] + HIDDEN), 431, "headers_too_large")


async def test_a_head_just_within_the_limits_is_served(tmp_path: Path) -> None:
    many = [b"X-%03d: %b\r\n" % (n, b"a" * 120) for n in range(230)]
    async with under_attack(tmp_path) as target, await target.connect() as client:
        for fields in ([b"A: " + b"a" * 31_000 + b"\r\n"], many):
            await client.send(request(*fields))
            assert (await client.answer()).status == 200
        target.expected = [UPSTREAM_BODY] * 2


ODD_BUT_HTTP: Final = {
    "latin-1 in a value": request(b"A: caf\xe9\r\n"),
    "a tab in a value": request(b"A: b\tc\r\n"),
    "two spaces behind the method": _line(b"POST  " + CHAT + b" HTTP/1.1"),
    "an empty value": request(b"A:\r\n"),
    "no space behind the colon": request(b"A:b\r\n"),
    "names in capitals": request().replace(b"Content-Length", b"CONTENT-LENGTH").replace(b"Host", b"HOST"),
    "every odd token character in a name": request(b"!#$%&'*+-.^_`|~: b\r\n"),
    "line ends before the request": b"\r\n\r\n" + request(),
    "a header twice": request(b"A: b\r\nA: c\r\n"),
    "an empty host": request(host=b"Host:\r\n"),
    "a length with zeros in front": request().replace(b"Length: ", b"Length: 000"),
}


@pytest.mark.parametrize("bytewise", [False, True], ids=["whole", "bytewise"])
@pytest.mark.parametrize("case", ODD_BUT_HTTP)
async def test_what_is_odd_but_http_is_served(tmp_path: Path, case: str, bytewise: bool) -> None:
    async with under_attack(tmp_path) as target, await target.connect() as client:
        for byte in ODD_BUT_HTTP[case] if bytewise else ():
            await client.send(bytes((byte,)))
        if not bytewise:
            await client.send(ODD_BUT_HTTP[case])
        assert (await client.answer()).status == 200
        await client.send(request(body=b"not json"))  # and the connection is usable
        check_error(await client.answer(), 400, "invalid_json")
        target.expected = [UPSTREAM_BODY]
