"""Where a key may be presented, what holds when several are, and that none goes on or is written down.

Keys are read from `Authorization: Bearer`, `x-api-key` and `api-key`; if several are presented, the first
that is known decides. What is in a query string is never a key."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.integration.http.hostile import AUTH, CHAT, UPSTREAM_BODY, check_error, request, under_attack
from tests.proxy.rig import KEY

BAD: Final = b"sk-canary-0123456789"
GOOD: Final = KEY.encode()

ACCEPTED: Final = {
    "bearer": AUTH,
    "bearer in capitals": b"AUTHORIZATION: BEARER " + GOOD + b"\r\n",
    "bearer and more spaces": b"Authorization: Bearer   " + GOOD + b"  \r\n",
    "x-api-key": b"X-Api-Key: " + GOOD + b"\r\n",
    "api-key": b"api-key: " + GOOD + b"\r\n",
    "two authorizations, the second known": b"Authorization: Bearer " + BAD + b"\r\n" + AUTH,
    "two authorizations, the first known": AUTH + b"Authorization: Bearer " + BAD + b"\r\n",
    "the same authorization twice": AUTH * 2,
    "authorization known, x-api-key not": AUTH + b"x-api-key: " + BAD + b"\r\n",
    "x-api-key known, authorization not": b"Authorization: Bearer "
    + BAD
    + b"\r\nx-api-key: "
    + GOOD
    + b"\r\n",
    "x-api-key known, authorization of another scheme": b"Authorization: Basic Y2FuYXJ5\r\nx-api-key: "
    + GOOD
    + b"\r\n",
    "all three": AUTH + b"x-api-key: " + GOOD + b"\r\napi-key: " + GOOD + b"\r\n",
}

REFUSED: Final = {
    "none": b"",
    "an unknown one": b"Authorization: Bearer " + BAD + b"\r\n",
    "an empty one": b"Authorization: Bearer \r\n",
    "an empty header": b"Authorization:\r\n",
    "no scheme": b"Authorization: " + GOOD + b"\r\n",
    "another scheme": b"Authorization: Basic " + GOOD + b"\r\n",
    "no space": b"Authorization: Bearer" + GOOD + b"\r\n",
    "two in one": b"Authorization: Bearer " + BAD + b", Bearer " + GOOD + b"\r\n",
    "with a tail": b"Authorization: Bearer " + GOOD + b" canary\r\n",
    "in quotes": b'Authorization: Bearer "' + GOOD + b'"\r\n',
    "in another case": b"Authorization: Bearer " + GOOD.upper() + b"\r\n",
    "latin-1": b"Authorization: Bearer canary\xe9\r\n",
    "in a cookie": b"Cookie: api_key=" + GOOD + b"\r\n",
    "in a proxy header": b"Proxy-Authorization: Bearer " + GOOD + b"\r\n",
    "in google's header": b"x-goog-api-key: " + GOOD + b"\r\n",
    "in a name alike": b"x_api_key: " + GOOD + b"\r\n",
    "the engine's credential": b"Authorization: Bearer upstream-credential\r\n",
}


@pytest.mark.parametrize("case", ACCEPTED)
async def test_the_first_known_key_decides_and_none_goes_on(tmp_path: Path, case: str) -> None:
    async with under_attack(tmp_path) as target, await target.connect() as client:
        await client.send(request(auth=ACCEPTED[case]))
        assert (await client.answer()).status == 200
        (received,) = target.engine.requests
        names = [name.lower() for name, _ in received.headers]
        assert names.count(b"authorization") == 1
        assert not {b"x-api-key", b"api-key"} & set(names)
        assert BAD not in received.head.replace(b"x-secret: Bearer " + BAD, b"")
        target.expected = [UPSTREAM_BODY]


@pytest.mark.parametrize("case", REFUSED)
async def test_whatever_else_is_presented_reads_alike(tmp_path: Path, case: str) -> None:
    async with under_attack(tmp_path) as target, await target.connect() as client:
        for path, dialect in ((CHAT, "openai"), (b"/v1/messages", "anthropic")):
            await client.send(request(line=b"POST " + path + b" HTTP/1.1\r\n", auth=REFUSED[case]))
            answer = await client.answer()
            check_error(answer, 401, "invalid_api_key", dialect)
            assert answer.headers["www-authenticate"] == "Bearer"
            assert b"no valid API key was given" in answer.body
        await client.send(request(line=b"GET /v1/models HTTP/1.1\r\n", auth=REFUSED[case], body=None))
        check_error(await client.answer(), 401, "invalid_api_key")


@pytest.mark.parametrize(
    "query",
    [b"key=", b"api_key=", b"api-key=", b"apikey=", b"access_token=", b"token=", b"authorization=Bearer%20"],
)
async def test_a_key_in_a_query_is_no_key_and_is_written_nowhere(tmp_path: Path, query: bytes) -> None:
    async with under_attack(tmp_path) as target, await target.connect() as client:
        for line in (b"POST " + CHAT + b"?%b HTTP/1.1\r\n", b"GET /v1/models?%b HTTP/1.1\r\n"):
            await client.send(request(line=line % (query + GOOD), auth=b""))
            answer = await client.answer()
            check_error(answer, 401, "invalid_api_key")
            assert GOOD not in answer.body


@pytest.mark.parametrize("name", [b"x-custom", b"x-forwarded-for", b"x-litellm-key", b"user-agent"])
async def test_a_key_that_another_header_repeats_does_not_go_on(tmp_path: Path, name: bytes) -> None:
    """Nor does one that is not known: somebody's it is. (What is shorter than 16 bytes is no key.)"""
    async with under_attack(tmp_path) as target, await target.connect() as client:
        both = b"Authorization: Bearer " + BAD + b"\r\n" + AUTH
        await client.send(request(name + b": " + BAD + b"\r\n", auth=both))
        assert (await client.answer()).status == 200
        (received,) = target.engine.requests
        assert BAD not in received.head
        target.expected = [UPSTREAM_BODY]
