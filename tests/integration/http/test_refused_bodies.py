"""Bodies that nobody wants, and `Expect`: what is refused before it is read is refused on the headers alone,
no 100 is sent for it, its rest is never taken for a request, and the answer is never lost."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from fastllm_proxy.heads import ConnectionLimits
from tests.integration.http.hostile import (
    BODY,
    CHAT,
    CHUNKED,
    HIDDEN,
    UPSTREAM_BODY,
    answers_in,
    check_error,
    chunks,
    length_of,
    refused,
    request,
    under_attack,
)
from tests.proxy.rig import MAX_BODY_BYTES, chat

EXPECT: Final = b"Expect: 100-continue\r\n"
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
CLOSE: Final = b"Connection: close\r\n"


@pytest.mark.parametrize("spelling", [EXPECT, b"expect:100-Continue\r\n", b"EXPECT:  100-CONTINUE \r\n"])
async def test_expect_is_answered_before_the_body_is_sent(tmp_path: Path, spelling: bytes) -> None:
    async with under_attack(tmp_path) as target, await target.connect() as client:
        for _ in range(2):
            await client.send(request(spelling, length_of(BODY), body=None))
            assert await client.until(b"\r\n\r\n") == CONTINUE
            await client.send(BODY)
            assert (await client.answer()).status == 200
            target.expected.append(UPSTREAM_BODY)


async def test_expect_before_chunks_is_answered_too(tmp_path: Path) -> None:
    async with under_attack(tmp_path) as target, await target.connect() as client:
        await client.send(request(EXPECT, CHUNKED, body=None))
        assert await client.until(b"\r\n\r\n") == CONTINUE
        await client.send(chunks(BODY))
        assert (await client.answer()).status == 200
        target.expected = [UPSTREAM_BODY]


async def test_a_client_that_does_not_wait_for_the_100_is_served(tmp_path: Path) -> None:
    async with under_attack(tmp_path) as target:
        answers = await target.send(request(EXPECT, CLOSE))
        assert [answer.status for answer in answers if answer.status >= 200] == [200]
        target.expected = [UPSTREAM_BODY]


@pytest.mark.parametrize("value", [b"200-maybe", b"100-continue, canary", b"canary"])
async def test_another_expectation_is_ignored(tmp_path: Path, value: bytes) -> None:
    """RFC 9110 10.1.1 allows a 417 and does not demand it; no client of ours depends on either."""
    async with under_attack(tmp_path) as target:
        answers = await target.send(request(b"Expect: " + value + b"\r\n", CLOSE))
        assert [answer.status for answer in answers] == [200]
        target.expected = [UPSTREAM_BODY]


async def test_an_http_10_client_never_sees_a_100(tmp_path: Path) -> None:
    async with under_attack(tmp_path) as target, await target.connect() as client:
        line = b"POST " + CHAT + b" HTTP/1.0\r\n"
        await client.send(request(EXPECT, length_of(BODY), line=line, body=None))
        await client.send(BODY)
        assert [answer.status for answer in answers_in(await client.rest())] == [200]
        target.expected = [UPSTREAM_BODY]


NO_KEY: Final = b"Authorization: Bearer sk-canary\r\n"
UNWANTED: Final = {
    "no key": (request(EXPECT, length_of(BODY), body=None, auth=NO_KEY), 401),
    "no key, in chunks": (request(EXPECT, CHUNKED, body=None, auth=NO_KEY), 401),
    "no route": (request(EXPECT, length_of(BODY), line=b"POST /elsewhere HTTP/1.1\r\n", body=None), 404),
    "wrong method": (
        request(EXPECT, length_of(BODY), line=b"PUT /v1/embeddings HTTP/1.1\r\n", body=None),
        405,
    ),
    "too large": (request(EXPECT, length_of(b"x" * (MAX_BODY_BYTES + 1)), body=None), 413),
    "unknown encoding": (request(EXPECT, length_of(BODY), b"Content-Encoding: canary\r\n", body=None), 415),
    "malformed": (request(EXPECT, length_of(BODY), b"A : b\r\n", body=None), 400),
}


@pytest.mark.parametrize("case", UNWANTED)
async def test_no_100_is_sent_for_a_body_that_is_not_wanted(tmp_path: Path, case: str) -> None:
    data, status = UNWANTED[case]
    async with under_attack(tmp_path) as target, await target.connect() as client:
        await client.send(data)  # and the body is held back, as such clients do
        refused(answers_in(await client.rest()), status)


SIZES: Final = [10, 10_000, 200_000, 300_000, 8_000_000]


@pytest.mark.parametrize("framing", ["length", "chunks"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("path", [CHAT, b"/v1/messages"])
async def test_the_rest_of_an_unwanted_body_is_never_taken_for_a_request(
    tmp_path: Path, size: int, framing: str, path: bytes
) -> None:
    """Sent by a client that begins to read only when all is sent."""
    content = (HIDDEN * (size // len(HIDDEN) + 1))[:size]
    line = b"POST " + path + b" HTTP/1.1\r\n"
    whole = (
        request(line=line, body=content, auth=NO_KEY)
        if framing == "length"
        else request(CHUNKED, line=line, body=None, auth=NO_KEY) + chunks(content, 30_000)
    )
    limits = ConnectionLimits(linger_pause_seconds=0.2)
    async with under_attack(tmp_path, connection=limits) as target, await target.connect() as client:
        await client.send(whole)
        answer = await client.answer()
        check_error(answer, 401, dialect="openai" if path == CHAT else "anthropic")
        if answer.headers.get("connection") == "close":
            assert size > 10_000 or framing == "chunks"
            assert await client.rest() == b""
            return
        try:
            await client.send(request())
            answer = await client.answer()
        except (BrokenPipeError, ConnectionResetError, AssertionError):
            return  # closed without a word, as any idle connection may be: the client tries again
        assert answer.status == 200
        target.expected = [UPSTREAM_BODY]


@pytest.mark.parametrize("extra", [1, 1_000_000])
async def test_a_body_over_the_limit_is_413_once_it_is_known_to_be(tmp_path: Path, extra: int) -> None:
    async with under_attack(tmp_path) as target:
        over = b"x" * (MAX_BODY_BYTES + extra)
        refused(await target.send(request(body=over)), 413, "request_too_large")
        async with await target.connect() as client:
            await client.send(request(length_of(over), body=None))  # known by its length alone
            refused(answers_in(await client.rest()), 413, "request_too_large")
        async with await target.connect() as client:  # known when it has come, not when it ends
            await client.send(request(CHUNKED, body=None) + b"%x\r\n%b" % (len(over) + 9, over))
            refused(answers_in(await client.rest()), 413, "request_too_large")


async def test_a_body_at_the_limit_is_forwarded(tmp_path: Path) -> None:
    async with under_attack(tmp_path) as target:
        body = chat(filler="a" * (MAX_BODY_BYTES - len(chat(filler=""))))
        assert len(body) == MAX_BODY_BYTES
        for data in (request(CLOSE, body=body), request(CLOSE, CHUNKED, body=None) + chunks(body, 65_536)):
            answers = await target.send(data)
            assert [answer.status for answer in answers] == [200]
            target.expected.append(body.replace(b'"assistant"', b'"fake-model"'))


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b"canary", b'{"model":', b"\xff\xfe", b'{"a":1}' * 2])
async def test_a_body_that_is_no_object_is_refused_and_the_connection_kept(
    tmp_path: Path, body: bytes
) -> None:
    async with under_attack(tmp_path) as target, await target.connect() as client:
        for data in (request(body=body), request(CHUNKED, body=None) + chunks(body)):
            await client.send(data)
            check_error(await client.answer(), 400, "invalid_json")
        await client.send(request(body=None))  # no length at all: no body
        check_error(await client.answer(), 400, "invalid_json")
        await client.send(request())
        assert (await client.answer()).status == 200
        target.expected = [UPSTREAM_BODY]
