"""What ends a connection, and what is read behind it: nothing, or HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.integration.http.hostile import (
    BODY,
    CHAT,
    HIDDEN,
    HIDDEN_UPSTREAM,
    UPSTREAM_BODY,
    check_error,
    request,
    under_attack,
)
from tests.proxy.rig import UPSTREAM_MODEL, chat

CLOSE: Final = b"Connection: close\r\n"


def _numbered(number: int) -> bytes:
    return chat(number=number, filler="canary" * number)


def _upstream(number: int) -> bytes:
    return chat(model=UPSTREAM_MODEL, number=number, filler="canary" * number)


@pytest.mark.parametrize("bytewise", [False, True], ids=["whole", "bytewise"])
@pytest.mark.parametrize(
    "bad",
    [b"canary\r\n\r\n", request(b"Content-Length: 3\r\n"), request(host=b"")],
    ids=["nonsense", "two lengths", "no host"],
)
async def test_a_bad_request_behind_pipelined_ones_is_refused_in_its_turn(
    tmp_path: Path, bad: bytes, bytewise: bool
) -> None:
    async with under_attack(tmp_path) as target:
        data = b"".join(request(body=_numbered(n)) for n in range(3))
        answers = await target.send(data + bad + HIDDEN, bytewise=bytewise)
        assert [answer.status for answer in answers] == [200, 200, 200, 400]
        check_error(answers[-1], 400, "malformed_request")
        target.expected = [_upstream(n) for n in range(3)]


async def test_behind_connection_close_nothing_is_served(tmp_path: Path) -> None:
    async with under_attack(tmp_path) as target:
        for ending in (CLOSE, b"Connection: Close\r\n", b"Connection: keep-alive, close\r\n"):
            answers = await target.send(request(ending) + HIDDEN * 3)
            assert [answer.status for answer in answers] == [200]
            assert answers[0].headers["connection"] == "close"
            target.expected.append(UPSTREAM_BODY)


async def test_behind_an_http_10_request_nothing_is_served_unless_it_asked_to_keep(tmp_path: Path) -> None:
    line = b"POST " + CHAT + b" HTTP/1.0\r\n"
    async with under_attack(tmp_path) as target:
        answers = await target.send(request(line=line) + HIDDEN)
        assert [answer.status for answer in answers] == [200]
        kept = request(b"Connection: keep-alive\r\n", line=line)
        answers = await target.send(kept + request(line=line, body=chat(hidden=True)) + HIDDEN)
        assert [answer.status for answer in answers] == [200, 200]
        assert [answer.headers["connection"] for answer in answers] == ["keep-alive", "close"]
        target.expected = [UPSTREAM_BODY] * 2 + [chat(model=UPSTREAM_MODEL, hidden=True)]


async def test_a_stream_to_an_http_10_client_has_no_chunks_and_ends_with_the_connection(
    tmp_path: Path,
) -> None:
    async with under_attack(tmp_path) as target:
        line = b"POST " + CHAT + b" HTTP/1.0\r\n"
        asked = request(b"Connection: keep-alive\r\n", line=line, body=chat(stream=True))
        (answer,) = await target.send(asked + HIDDEN)
        assert answer.status == 200
        assert "transfer-encoding" not in answer.headers
        assert answer.headers["connection"] == "close"
        assert answer.body.startswith(b"data: ")
        assert answer.body.endswith(b"data: [DONE]\n\n")
        target.expected = [target.engine.requests[0].body]


async def test_line_ends_between_requests_are_nothing(tmp_path: Path) -> None:
    async with under_attack(tmp_path) as target:
        answers = await target.send(request() + b"\r\n\r\n\r\n" + request(CLOSE, body=HIDDEN[-1:]) + HIDDEN)
        assert [answer.status for answer in answers] == [200, 400]
        target.expected = [UPSTREAM_BODY]
        assert HIDDEN_UPSTREAM not in [received.body for received in target.engine.requests]


async def test_bytes_behind_a_body_are_not_part_of_it(tmp_path: Path) -> None:
    async with under_attack(tmp_path) as target:
        data = request(b"Content-Length: %d\r\n" % len(BODY), body=None) + BODY + b"canary" * 10 + b"\r\n\r\n"
        answers = await target.send(data + HIDDEN)
        check_error(answers[-1], 400, "malformed_request")
        target.expected = [UPSTREAM_BODY] * (len(answers) - 1)


UPGRADES: Final = {
    "websocket": b"Upgrade: websocket\r\nConnection: Upgrade\r\n",
    "websocket in full": b"Upgrade: websocket\r\nConnection: keep-alive, Upgrade\r\nOrigin: http://canary\r\n"
    b"Sec-WebSocket-Key: Y2FuYXJ5Y2FuYXJ5MQ==\r\nSec-WebSocket-Version: 13\r\n",
    "h2c": b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n",
    "tls": b"Upgrade: TLS/1.2\r\nConnection: Upgrade\r\n",
    "without a connection header": b"Upgrade: websocket\r\n",
    "several": b"Upgrade: websocket, h2c, canary/1\r\nConnection: upgrade\r\n",
}


@pytest.mark.parametrize("case", UPGRADES)
async def test_an_upgrade_is_never_taken_up(tmp_path: Path, case: str) -> None:
    """What follows is read as HTTP, or not at all."""
    frame = b"\x81\x86canarycanary"
    async with under_attack(tmp_path) as target:
        answers = await target.send(request(UPGRADES[case]) + frame + HIDDEN)
        assert answers[0].status == 200
        assert "upgrade" not in answers[0].headers
        for answer in answers[1:]:
            check_error(answer, 400, "malformed_request")
        assert len(answers) <= 2
        target.expected = [UPSTREAM_BODY]
        answers = await target.send(request(UPGRADES[case]) + request(CLOSE, body=chat(hidden=True)))
        assert {answer.status for answer in answers} == {200}
        target.expected += [UPSTREAM_BODY, chat(model=UPSTREAM_MODEL, hidden=True)][: len(answers)]


@pytest.mark.parametrize("case", UPGRADES)
@pytest.mark.parametrize(("path", "status"), [(CHAT, 405), (b"/v1/realtime", 404), (b"/v1/models", 200)])
async def test_a_websocket_hello_is_an_ordinary_get(
    tmp_path: Path, case: str, path: bytes, status: int
) -> None:
    async with under_attack(tmp_path) as target:
        hello = request(UPGRADES[case], line=b"GET " + path + b" HTTP/1.1\r\n", body=None)
        answers = await target.send(hello + request(CLOSE, auth=b""))
        assert answers[0].status == status
        if status >= 400:
            check_error(answers[0], status)
        for answer in answers[1:]:
            check_error(answer, 401)
