"""Engines that close, reset, stop or speak out of turn, at each moment of a connection's life."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from fastllm_proxy.dispatch import Patience
from fastllm_proxy.relay import RelayTimes
from tests.fakes.answers import FaultKind, FaultPhase
from tests.fakes.edge import eventually
from tests.fakes.engine import Answer, FakeEngine, Fault
from tests.integration.http.engines import CHAT, call, facing, failed, quiet, sockets, spotless
from tests.proxy.rig import chat, gateway

SECOND = b'HTTP/1.1 200 OK\r\ncontent-length: 16\r\n\r\n{"stolen":"yes"}'
LARGE = chat(padding="x" * 3_000_000)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
JSON = (("content-type", "application/json"),)


# Speaking out of turn.


async def test_an_answer_unasked_on_an_idle_connection_reaches_nobody(tmp_path: Path) -> None:
    async with facing(tmp_path) as (proxy, engine):
        for round_ in range(1, 4):
            assert (await call(proxy)).status == 200
            assert proxy.backend(1).pool.idle == 1
            engine.connections[-1].write(SECOND)
            await eventually(lambda: proxy.backend(1).pool.idle == 0)
            assert len(engine.connections) == round_
        assert "attempt failed" not in proxy.log_text()


async def test_an_answer_unasked_just_before_the_next_request_reaches_nobody(tmp_path: Path) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    loop = asyncio.get_running_loop()
    with listener:
        listener.setblocking(False)
        async with spotless(), FakeEngine.start() as other:
            address = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
            async with gateway(tmp_path, other, providers={"api_base": address}) as proxy:
                answer = HEAD + b"content-length: 2\r\n\r\n{}"
                first = asyncio.create_task(call(proxy))
                engine, _ = await loop.sock_accept(listener)
                await loop.sock_recv(engine, 65_536)
                engine.send(answer)
                assert (await first).body == b"{}"
                pool = proxy.backend(1).pool
                assert pool.idle == 1
                engine.send(SECOND)  # it is there, and the gateway's loop has not had a turn since
                assert pool.take() is None
                engine.close()
                second = asyncio.create_task(call(proxy))
                engine, _ = await loop.sock_accept(listener)
                await loop.sock_recv(engine, 65_536)
                engine.send(answer)
                assert (await second).body == b"{}"
                await quiet(proxy)
                engine.close()


async def test_two_answers_to_pipelined_clients_never_cross(tmp_path: Path) -> None:
    twice = Answer(body=b'{"mine":1}', trailing=SECOND)
    async with facing(tmp_path, *[twice] * 30) as (proxy, _):
        answers = await asyncio.gather(*(call(proxy) for _ in range(30)))
        assert {answer.body for answer in answers} == {b'{"mine":1}'}
        assert proxy.backend(1).pool.idle == 0


# Closing while idle.


async def test_an_engine_that_closes_idle_connections_early_costs_no_request(tmp_path: Path) -> None:
    """200 calls in 20 lanes, each lane pausing around the engine's half second."""
    async with facing(tmp_path) as (proxy, engine):
        engine.keep_alive_seconds = 0.5
        statuses: list[int] = []

        async def lane(number: int) -> None:
            client = await proxy.connect()
            for turn in range(10):
                client.send()
                statuses.append((await client.answer()).status)
                if turn in (3, 6):
                    await asyncio.sleep(0.48 + number * 0.003)
            client.close()

        await asyncio.gather(*(lane(number) for number in range(20)))
        assert statuses == [200] * 200
        assert "attempt failed" not in proxy.log_text()
        assert any(connection.closed_at is not None for connection in engine.connections)


@pytest.mark.parametrize("kind", ["close", "reset", "half_close"])
async def test_a_connection_that_ends_while_idle_is_not_used(tmp_path: Path, kind: FaultKind) -> None:
    async with facing(tmp_path) as (proxy, engine):
        for _ in range(3):
            assert (await call(proxy)).status == 200
            assert proxy.backend(1).pool.idle == 1
            engine.connections[-1].break_off(kind)
            await eventually(lambda: proxy.backend(1).pool.idle == 0)
        assert engine.hits(CHAT) == 3
        assert "attempt failed" not in proxy.log_text()


# Ending within a request.


@pytest.mark.parametrize("kind", ["close", "reset", "half_close"])
@pytest.mark.parametrize("phase", ["request", "mid_head", "body"])
@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_an_end_before_any_body_is_a_failed_attempt(
    tmp_path: Path, kind: FaultKind, phase: FaultPhase, framing: Any
) -> None:
    async with facing(tmp_path, Answer(framing=framing, fault=Fault(kind, at=phase))) as (proxy, engine):
        failed(await call(proxy))
        await eventually(lambda: engine.open_connections == 0)
        assert engine.hits(CHAT) == 1
        assert (await call(proxy)).status == 200


@pytest.mark.parametrize("kind", ["close", "reset", "half_close"])
@pytest.mark.parametrize("phase", ["mid_body", "end"])
@pytest.mark.parametrize(("framing", "length"), [("length", 100_000), ("chunked", None), ("length", 2_000)])
async def test_an_end_within_the_body_is_an_error_or_a_cut(
    tmp_path: Path, kind: FaultKind, phase: FaultPhase, framing: Any, length: int | None
) -> None:
    half = b"x" * ((length or 2_000) // 2)
    answer = Answer(events=(half, half), headers=JSON, framing=framing, gap=0.01, fault=Fault(kind, at=phase))
    async with facing(tmp_path, answer) as (proxy, engine):
        got = await call(proxy)
        if length == 2_000:
            failed(got)  # nothing had gone yet: it is read whole
        else:
            assert (got.status, got.whole) == (200, False)
            assert got.body == b"x" * len(got.body)
        await eventually(lambda: engine.open_connections == 0)
        assert (await proxy.events.get()).status == 502
        assert (await call(proxy)).status == 200


async def test_a_body_without_length_that_ends_by_reset_is_cut(tmp_path: Path) -> None:
    fault = Fault("reset", at="mid_body", after=2)
    answer = Answer(events=(b"one", b"two", b"three"), headers=JSON, framing="eof", gap=0.02, fault=fault)
    async with facing(tmp_path, answer) as (proxy, engine):
        got = await call(proxy)
        assert (got.status, got.whole) == (200, False)
        assert b"onetwo".startswith(got.body)
        await eventually(lambda: engine.open_connections == 0)


@pytest.mark.parametrize("kind", ["close", "reset", "half_close", "stall"])
async def test_an_end_within_the_trailers_is_a_cut(tmp_path: Path, kind: FaultKind) -> None:
    raw = HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nx-sum: 1"
    answer = Answer(raw=raw, fault=Fault(kind, at="idle"))
    async with facing(tmp_path, answer, times=RelayTimes(idle=0.1)) as (proxy, engine):
        got = await call(proxy)
        assert (got.status, got.whole) in ((200, False), (502, True))
        assert got.status == 502 or got.body == b"hello"
        await eventually(lambda: engine.open_connections == 0)


# Requests that are not taken.


@pytest.mark.parametrize("fault", [None, Fault("close", at="idle"), Fault("reset", at="idle")])
async def test_an_answer_before_the_request_was_read_reaches_the_client(
    tmp_path: Path, fault: Fault | None
) -> None:
    early = Answer(status=413, body=b'{"error":{"message":"too much"}}', early=True, fault=fault)
    async with facing(tmp_path, early) as (proxy, engine):
        got = await call(proxy, LARGE)
        assert (got.status, got.whole) == (413, True)
        assert b"too much" in got.body
        if fault is not None:
            await eventually(lambda: engine.open_connections == 0)
        assert (await call(proxy)).status == 200


async def test_an_engine_that_never_reads_a_large_request_is_given_up(tmp_path: Path) -> None:
    async with facing(tmp_path, patience=Patience(stream=0.1, whole=0.1)) as (proxy, engine):
        engine.accepting = "deaf"
        got = await call(proxy, LARGE)
        assert (got.status, got.code) == (504, "upstream_timeout")
        assert proxy.backend(1).pool.idle == 0


# Everything at once, and what is left of it.


async def test_hundreds_of_calls_at_once_leave_no_descriptor_behind(tmp_path: Path) -> None:
    before = sockets()
    async with facing(tmp_path) as (proxy, engine):
        for _ in range(2):
            clients = [await proxy.connect() for _ in range(250)]
            for client in clients:
                client.send()
            answers = await asyncio.gather(*(client.answer() for client in clients))
            assert {answer.status for answer in answers} == {200}
            for client in clients:
                client.close()
        assert proxy.backend(1).pool.idle == len(engine.connections) <= 250
    assert sockets() <= before
