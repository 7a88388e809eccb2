"""Many requests on one connection: answered in order, and behind one that ends the connection nothing is
served."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.integration.http.hostile import (
    CHAT,
    CHUNKED,
    FOREIGN,
    HIDDEN,
    HOST,
    UPSTREAM_BODY,
    check_error,
    chunks,
    refused,
    request,
    under_attack,
)
from tests.proxy.rig import MAX_BODY_BYTES, UPSTREAM_MODEL, chat

CLOSE: Final = b"Connection: close\r\n"


def _numbered(number: int) -> bytes:
    return chat(number=number, filler="canary" * (number % 7) * 100)


def _upstream(number: int) -> bytes:
    return chat(model=UPSTREAM_MODEL, number=number, filler="canary" * (number % 7) * 100)


def _pipelined(number: int) -> bytes:
    """Every third in chunks."""
    if number % 3:
        return request(body=_numbered(number))
    return request(CHUNKED, body=None) + chunks(_numbered(number))


@pytest.mark.parametrize("count", [2, 10, 200])
async def test_pipelined_requests_with_bodies_are_answered_in_order(tmp_path: Path, count: int) -> None:
    async with under_attack(tmp_path) as target:
        data = b"".join(request(body=_numbered(n)) for n in range(count - 1))
        answers = await target.send(data + request(CLOSE, body=_numbered(count - 1)))
        assert [answer.status for answer in answers] == [200] * count
        assert answers[-1].headers["connection"] == "close"
        assert not [answer for answer in answers[:-1] if "connection" in answer.headers]
        target.expected = [_upstream(n) for n in range(count)]


@pytest.mark.parametrize("bytewise", [False, True], ids=["whole", "bytewise"])
async def test_heads_that_are_alike_do_not_lend_each_other_bodies_or_keys(
    tmp_path: Path, bytewise: bool
) -> None:
    """The same head again and again, each with a body of its own; among them one in chunks, one whose key is
    unknown and of the same length, and one whose head repeats and whose framing is wrong."""
    bodies = [chat(number=n) for n in range(10, 18)]
    in_chunks = request(CHUNKED, body=None)
    stranger = request(body=bodies[0]).replace(b"sk-test-key", b"sk-test-kex")
    data = b"".join(request(body=body) for body in bodies[:3])
    data += in_chunks + chunks(bodies[3]) + in_chunks + chunks(bodies[4]) + stranger
    data += b"".join(request(body=body) for body in bodies[5:]) + stranger
    data += request(body=bodies[0]) + in_chunks + b"canary\r\n" + HIDDEN
    async with under_attack(tmp_path) as target:
        answers = await target.send(data, bytewise=bytewise)
        assert [answer.status for answer in answers] == [200] * 5 + [401] + [200] * 3 + [401, 200, 400]
        numbers = [*range(10, 18), 10]
        target.expected = [chat(model=UPSTREAM_MODEL, number=n) for n in numbers]


async def test_pipelined_chunked_requests_are_served_in_order_or_not_at_all(tmp_path: Path) -> None:
    """A chunked one may be the last that a connection serves."""
    async with under_attack(tmp_path) as target:
        answers = await target.send(b"".join(_pipelined(n) for n in range(30)) + request(CLOSE))
        assert {answer.status for answer in answers} == {200}
        target.expected = [_upstream(n) if n < 30 else UPSTREAM_BODY for n in range(len(answers))]


async def test_bodies_do_not_run_into_each_other_when_requests_arrive_byte_by_byte(tmp_path: Path) -> None:
    async with under_attack(tmp_path) as target:
        data = request(body=_numbered(1)) + request(body=_numbered(2)) + request(CLOSE, body=_numbered(4))
        assert len(await target.send(data, bytewise=True)) == 3
        target.expected = [_upstream(1), _upstream(2), _upstream(4)]


@pytest.mark.parametrize("bad", [b"canary\r\n\r\n", request(b"Content-Length: 3\r\n"), request(host=b"")])
async def test_a_bad_request_in_the_middle_is_the_last(tmp_path: Path, bad: bytes) -> None:
    async with under_attack(tmp_path) as target, await target.connect() as client:
        for number in range(5):
            await client.send(request(body=_numbered(number)))
            assert (await client.answer()).status == 200
        target.expected = [_upstream(n) for n in range(5)]
        await client.send(bad + HIDDEN)
        answer = await client.answer()
        check_error(answer, 400, "malformed_request")
        assert await client.rest() == b""


@pytest.mark.parametrize("size", [0, 1_000, 100_000, 2_000_000])
async def test_behind_a_refused_request_the_next_is_served_or_the_connection_closed(
    tmp_path: Path, size: int
) -> None:
    """Its body is never taken for requests, whatever is in it."""
    hidden = HIDDEN * (size // len(HIDDEN))
    async with under_attack(tmp_path) as target:
        unknown = request(auth=b"Authorization: Bearer sk-canary\r\n", body=hidden)
        answers = await target.send(unknown + request(CLOSE))
        check_error(answers[0], 401, "invalid_api_key")
        if answers[0].headers.get("connection") == "close":
            assert size > 100_000
            assert len(answers) == 1
        else:
            assert [answer.status for answer in answers[1:]] == [200]
            target.expected = [UPSTREAM_BODY]


@pytest.mark.parametrize("path", [CHAT, b"/v1/messages"])
async def test_behind_a_body_that_is_too_large_nothing_is_served_of_it(tmp_path: Path, path: bytes) -> None:
    async with under_attack(tmp_path) as target:
        hidden = HIDDEN * (MAX_BODY_BYTES // len(HIDDEN) + 1)
        line = b"POST " + path + b" HTTP/1.1\r\n"
        dialect = "openai" if path == CHAT else "anthropic"
        refused(
            await target.send(request(line=line, body=hidden) + HIDDEN),
            413,
            "request_too_large" if dialect == "openai" else None,
            dialect,
        )
        in_chunks = request(CHUNKED, line=line, body=None) + chunks(hidden, 50_000)
        answers = await target.send(in_chunks + request(CLOSE, auth=b"", body=b""))
        check_error(answers[0], 413, "request_too_large" if dialect == "openai" else None, dialect)
        for answer in answers[1:]:  # what is not hidden may be served
            check_error(answer, 401, "invalid_api_key")


async def test_an_http2_client_that_knows_no_better_is_refused(tmp_path: Path) -> None:
    settings = b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x64"
    async with under_attack(tmp_path) as target:
        answers = await target.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings + HIDDEN)
        refused(answers, 400, "malformed_request")


async def test_connect_opens_no_tunnel(tmp_path: Path) -> None:
    async with under_attack(tmp_path) as target:
        for authority in (b"127.0.0.1:%d" % target.engine.port, b"elsewhere.example:443"):
            data = b"CONNECT " + authority + b" HTTP/1.1\r\n" + HOST + FOREIGN + b"\r\n" + HIDDEN
            answers = await target.send(data)
            assert [answer.status for answer in answers] == [404]
            assert answers[0].headers["connection"] == "close"
            assert b"unknown_url" in answers[0].body
