"""Clients that are slow, silent, or leave: each is dropped in time, costs the others nothing, and leaves
nothing behind (`under_attack` checks what is in flight and buffered)."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from fastllm_proxy.body import BodyLimits
from fastllm_proxy.heads import PIPELINED_REQUESTS, ConnectionLimits
from tests.fakes.edge import Client, eventually
from tests.fakes.engine import Answer
from tests.integration.http.hostile import (
    AUTH,
    BODY,
    CHAT,
    CHUNKED,
    HIDDEN,
    UPSTREAM_BODY,
    Target,
    answers_in,
    check_error,
    in_the_stream,
    refused,
    request,
    under_attack,
    while_it_reads_nothing,
    while_the_engine_thinks,
)
from tests.proxy.rig import chat

QUICK: Final = ConnectionLimits(head_seconds=0.25, discard_seconds=0.25, linger_pause_seconds=0.1)
SHORT: Final = BodyLimits(pause_seconds=0.25, pace_seconds=0.25)
HEAD: Final = request(body=None).removesuffix(b"\r\n") + b"Content-Length: 100000\r\n\r\n"
ANTHROPIC: Final = HEAD.replace(CHAT, b"/v1/messages")
IN_CHUNKS: Final = request(CHUNKED, body=None)


async def _trickle(client: Client, data: bytes, pause_seconds: float = 0.02) -> None:
    for at in itertools.count():
        await client.send(data[at % len(data) :][:1])
        await asyncio.sleep(pause_seconds)


async def _answer_to(client: Client, sending: asyncio.Task[None]) -> bytes:
    """All that comes back until the connection ends."""
    try:
        return await client.rest()
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


@pytest.mark.parametrize(
    "begun",
    [b"", b"POST ", b"POST " + CHAT + b" HTTP/1.1\r\n", request(body=None)[:-2]],
    ids=["from the first byte", "in the target", "behind the line", "behind the fields"],
)
async def test_a_head_that_comes_byte_by_byte_is_given_up(tmp_path: Path, begun: bytes) -> None:
    async with under_attack(tmp_path, connection=QUICK) as target, await target.connect() as client:
        await client.send(begun)
        trickle = b"P" if not begun else b"a" if begun == b"POST " else b"X-A: canary\r\n"
        if not begun:
            await client.send(b"POST /")
        received = await _answer_to(client, asyncio.create_task(_trickle(client, trickle)))
        refused(answers_in(received), 408, "request_timeout")


async def test_the_second_head_of_a_connection_is_given_up_as_well(tmp_path: Path) -> None:
    async with under_attack(tmp_path, connection=QUICK) as target, await target.connect() as client:
        await client.send(request())
        assert (await client.answer()).status == 200
        target.expected = [UPSTREAM_BODY]
        await client.send(b"POST /")
        received = await _answer_to(client, asyncio.create_task(_trickle(client, b"a")))
        refused(answers_in(received), 408, "request_timeout")


async def test_a_head_begun_behind_all_that_is_read_ahead_is_given_up(tmp_path: Path) -> None:
    ahead = PIPELINED_REQUESTS + 1
    async with under_attack(tmp_path, connection=QUICK) as target, await target.connect() as client:
        target.expected = [UPSTREAM_BODY] * ahead
        await client.send(request() * ahead + b"POST /")
        answers = answers_in(await asyncio.wait_for(client.rest(), 2))
        assert [answer.status for answer in answers[:-1]] == [200] * ahead
        check_error(answers[-1], 408, "request_timeout")


async def test_a_head_that_nobody_waits_for_is_not_given_up_over(tmp_path: Path) -> None:
    """The connection's last answer is given: a refusal behind it could not be written."""
    limits = ConnectionLimits(head_seconds=0.25, linger_pause_seconds=0.1)
    async with under_attack(tmp_path, connection=limits) as target, await target.connect() as client:
        target.expected = [UPSTREAM_BODY]
        target.gateway.server.draining = True
        await client.send(request() + b"POST /")
        sending = asyncio.create_task(_trickle(client, b"a"))
        assert (await client.answer()).status == 200
        await asyncio.wait([sending], timeout=0.5)
        assert await _answer_to(client, sending) == b""
        target.gateway.server.draining = False


BODIES: Final[dict[str, tuple[bytes, bytes]]] = {
    "trickles": (HEAD, b"x"),
    "trickles in chunks": (IN_CHUNKS, b"1\r\nx\r\n"),
    "trickles as one chunk": (IN_CHUNKS + b"fffff\r\n", b"x"),
    "trickles an extension": (IN_CHUNKS + b"5;", b"x"),
    "trickles zeros of a size": (IN_CHUNKS, b"0" * 100),
    "pauses": (HEAD + b"x" * 50_000, b""),
    "pauses in a chunk": (IN_CHUNKS + b"fffff\r\n" + b"x" * 50_000, b""),
    "pauses before the last chunk": (IN_CHUNKS + b"1\r\nx\r\n", b""),
    "pauses within the last line end": (IN_CHUNKS + b"1\r\nx\r\n0\r\n", b""),
    "never begins": (HEAD, b""),
    "never begins in chunks": (IN_CHUNKS, b""),
}


@pytest.mark.parametrize("case", BODIES)
async def test_a_body_that_comes_too_slowly_is_given_up(tmp_path: Path, case: str) -> None:
    begun, trickle = BODIES[case]
    async with (
        under_attack(tmp_path, connection=QUICK, body=SHORT) as target,
        await target.connect() as client,
    ):
        await client.send(begun)
        never = asyncio.create_task(_trickle(client, trickle) if trickle else asyncio.sleep(60))
        (answer,) = answers_in(await _answer_to(client, never))
        # Zeros without end are no size either.
        check_error(answer, 400 if answer.status == 400 and "zeros" in case else 408)


async def test_a_slow_body_is_refused_in_the_shape_of_its_endpoint(tmp_path: Path) -> None:
    async with under_attack(tmp_path, body=SHORT) as target:
        refused(await target.send(ANTHROPIC + b"x"), 408, dialect="anthropic")


async def test_a_body_that_is_slow_but_within_the_pace_is_served(tmp_path: Path) -> None:
    limits = BodyLimits(pause_seconds=5, pace_seconds=0.1, bytes_per_second=100)
    async with under_attack(tmp_path, body=limits) as target, await target.connect() as client:
        body = chat(filler="canary" * 100)
        head = request(body=None).removesuffix(b"\r\n") + b"Content-Length: %d\r\n\r\n" % len(body)
        await client.send(head)
        for at in range(0, len(body), 25):
            await client.send(body[at : at + 25])
            await asyncio.sleep(0.01)
        assert (await client.answer()).status == 200
        target.expected = [body.replace(b'"assistant"', b'"fake-model"')]


async def test_hundreds_of_silent_connections_are_closed_in_time_and_others_served_meanwhile(
    tmp_path: Path,
) -> None:
    async with under_attack(tmp_path, connection=ConnectionLimits(keepalive_seconds=0.25)) as target:
        before = len(os.listdir("/proc/self/fd"))
        silent = [await target.connect() for _ in range(300)]
        assert (await target.gateway.post(body=BODY)).status == 200
        target.expected = [UPSTREAM_BODY]
        for client in silent:
            assert await client.rest() == b""
            client.raw.close()
        await eventually(lambda: len(os.listdir("/proc/self/fd")) <= before + 5)


# Half-closed


@pytest.mark.parametrize(
    "sent",
    [b"", b"\r\n", b"POST ", request(body=None)[:-2], b"canary"],
    ids=["nothing", "a line end", "a method", "all but the last line end", "a word"],
)
async def test_a_head_that_ends_with_the_connection_is_nothing_or_malformed(
    tmp_path: Path, sent: bytes
) -> None:
    async with under_attack(tmp_path) as target:
        answers = await target.send(sent, half_close=True)
        assert len(answers) <= 1
        for answer in answers:
            check_error(answer, 400, "malformed_request")


@pytest.mark.parametrize("sent", [HEAD + b"x" * 1_000, IN_CHUNKS + b"5\r\nca"], ids=["length", "chunks"])
async def test_a_body_that_ends_with_the_connection_is_never_forwarded(tmp_path: Path, sent: bytes) -> None:
    async with under_attack(tmp_path) as target:
        answers = await target.send(sent, half_close=True)
        assert len(answers) <= 1
        for answer in answers:
            check_error(answer, 400)


async def test_a_half_close_behind_the_request_counts_as_gone(tmp_path: Path) -> None:
    async with under_attack(tmp_path) as target:
        target.engine.script("/chat/completions", Answer(delay_to_head=30), Answer())
        async with await target.connect() as client:
            await client.send(request())
            received = await target.engine.arrived(1)
            client.half_close()
            assert await client.rest() == b""
            await asyncio.wait_for(received.settled.wait(), 2)
            assert received.aborted_at is not None
        target.expected = [UPSTREAM_BODY]
        event = await target.gateway.events.get()
        assert event.status == 499


# Reset in each phase


async def _nothing(_: Target, client: Client) -> None:
    await client.send(b"")


async def _in_the_head(_: Target, client: Client) -> None:
    await client.send(request()[:40])


async def _in_the_body(_: Target, client: Client) -> None:
    await client.send(HEAD + b"x" * 1_000)


async def _in_the_head_behind_an_answer(target: Target, client: Client) -> None:
    await client.send(request())
    assert (await client.answer()).status == 200
    await client.send(request()[:40])


async def _with_requests_waiting(target: Target, client: Client) -> None:
    target.engine.script("/chat/completions", Answer(delay_to_head=30), Answer())
    await client.send(request() + HIDDEN * 20)
    await target.engine.arrived(1)


async def _in_a_refused_upload(_: Target, client: Client) -> None:
    await client.send(request(auth=b"", body=b"x" * 100_000)[:50_000])


async def _behind_nonsense(_: Target, client: Client) -> None:
    await client.send(b"canary\r\n\r\n")


PHASES: Final = (
    _nothing,
    _in_the_head,
    _in_the_body,
    _in_the_head_behind_an_answer,
    while_the_engine_thinks,
    _with_requests_waiting,
    in_the_stream,
    while_it_reads_nothing,
    _in_a_refused_upload,
    _behind_nonsense,
)


@pytest.mark.parametrize("leaving", [Client.reset, lambda client: client.raw.close()], ids=["reset", "close"])
@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.__name__.strip("_"))
async def test_a_client_that_goes_leaves_nothing_behind_in_any_phase(
    tmp_path: Path, phase: Callable[..., object], leaving: Callable[[Client], None]
) -> None:
    async with under_attack(tmp_path) as target:
        client = await target.connect(receive_buffer=4096)
        await phase(target, client)  # type: ignore[misc]
        leaving(client)
        await target.settled()
        await eventually(lambda: all(received.settled.is_set() for received in target.engine.requests))
        assert len(target.engine.requests) <= 1
        target.expected = [received.body for received in target.engine.requests]
        assert AUTH not in b"".join(target.expected)
