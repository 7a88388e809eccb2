from __future__ import annotations

import asyncio
import socket
import zlib

import pytest
from aiohttp import web

from fastllm_proxy.control_plane import (
    PIECE_BYTES,
    AnswerTooLarge,
    ControlPlane,
    TokenRefused,
    Unreachable,
)
from tests.fakes.control import TOKEN, FakeControl, Scripted


def client(control: FakeControl, *tokens: str) -> ControlPlane:
    return ControlPlane(control.url + "/", tokens or (TOKEN,), "fastllm-proxy/test")


async def test_it_sends_the_token_and_who_it_is(control: FakeControl) -> None:
    async with client(control) as plane:
        await plane.post("/health-report", b"{}", deadline_seconds=5)
    (request,) = control.requests
    assert request.headers["authorization"] == f"Bearer {TOKEN}"
    assert request.headers["user-agent"] == "fastllm-proxy/test"
    assert request.headers["content-type"] == "application/json"


@pytest.mark.parametrize("size", [PIECE_BYTES, PIECE_BYTES + 1, 10 * PIECE_BYTES - 1])
async def test_large_bodies_leave_in_pieces_and_arrive_whole(control: FakeControl, size: int) -> None:
    body = b'"' + b"x" * (size - 2) + b'"'
    control.tokens = ("old",)
    async with client(control, "new", "old") as plane:  # sent twice: for the second token too
        await plane.post("/health-report", body, deadline_seconds=5)
    assert control.requests[-1].body == body
    assert ("content-length" in control.requests[-1].headers) == (size <= PIECE_BYTES)


async def test_while_rotating_the_token_that_is_accepted_is_kept(control: FakeControl) -> None:
    control.tokens = ("old",)
    async with client(control, "new", "old") as plane:
        for _ in range(2):
            assert (await plane.get("/nothing", deadline_seconds=5)).status == 404
        assert [r.headers["authorization"] for r in control.requests] == [
            "Bearer new",
            "Bearer old",
            "Bearer old",
        ]
        control.tokens = ("new",)
        assert (await plane.get("/nothing", deadline_seconds=5)).status == 404
        assert control.requests[-1].headers["authorization"] == "Bearer new"


async def test_no_token_accepted(control: FakeControl) -> None:
    async with client(control, "a", "b") as plane:
        with pytest.raises(TokenRefused, match="GET /snapshot answered 401") as raised:
            await plane.get("/snapshot?wait=0", deadline_seconds=5)
    assert "Bearer" not in str(raised.value)


async def test_one_deadline_for_the_whole_call(control: FakeControl) -> None:
    control.script("/usage", Scripted(hang=True))
    async with client(control) as plane:
        with pytest.raises(Unreachable, match=r"no answer within 0\.1 s"):
            await plane.post("/usage", b"", deadline_seconds=0.1)


async def test_a_body_that_stalls_is_under_the_deadline_too() -> None:
    async def stall(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-length": "10"})
        await response.prepare(request)
        await response.write(b"12345")
        await asyncio.Event().wait()
        return response

    runner = web.ServerRunner(web.Server(stall), shutdown_timeout=0.05)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        async with ControlPlane(f"http://127.0.0.1:{runner.addresses[0][1]}", ("t",), "x") as plane:
            with pytest.raises(Unreachable, match="no answer within"):
                await plane.get("/", deadline_seconds=0.1)
    finally:
        await runner.cleanup()


async def test_nobody_listening() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        async with ControlPlane(url, ("t",), "x") as plane:
            with pytest.raises(Unreachable, match="ClientConnectorError"):
                await plane.get("/", deadline_seconds=5)


async def test_answers_are_bounded_as_sent_and_inflated(control: FakeControl) -> None:
    control.script("/a", Scripted(body=b"x" * 2000))
    bomb = zlib.compress(b"x" * 100_000)
    control.script("/b", Scripted(body=bomb, headers={"content-encoding": "deflate"}))
    async with client(control) as plane:
        for path in ("/a", "/b"):
            with pytest.raises(AnswerTooLarge):
                await plane.get(path, deadline_seconds=5, max_bytes=1000)


async def test_what_is_not_what_its_encoding_says_is_no_answer(control: FakeControl) -> None:
    cut = zlib.compress(b"x" * 1000)[:-8]
    control.script("/a", Scripted(body=cut, headers={"content-encoding": "gzip"}))
    control.script("/a", Scripted(body=b"junk", headers={"content-encoding": "gzip"}))
    control.script("/a", Scripted(body=b"junk", headers={"content-encoding": "br"}))
    async with client(control) as plane:
        for _ in range(3):
            with pytest.raises(Unreachable):
                await plane.get("/a", deadline_seconds=5)


async def test_redirects_are_answers_and_not_followed(control: FakeControl) -> None:
    control.script("/a", Scripted(status=302, headers={"location": control.url + "/b"}))
    async with client(control) as plane:
        assert (await plane.get("/a", deadline_seconds=5)).status == 302
    assert not control.asked("/b")


async def test_a_proxy_in_the_environment_is_not_used(
    control: FakeControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    async with client(control) as plane:
        assert (await plane.get("/a", deadline_seconds=5)).status == 404
