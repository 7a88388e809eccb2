"""The listener over TLS: the same answers, nothing lost at the end of a connection, and whoever does not
speak TLS, or stops speaking it, costs nothing."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import pytest

from fastllm_proxy.accept import EdgeSettings
from fastllm_proxy.body import BodyLimits
from fastllm_proxy.heads import ConnectionLimits
from fastllm_proxy.relay import RelayTimes
from tests.fakes.certificates import Authority
from tests.fakes.control import FakeControl
from tests.fakes.edge import Client, eventually
from tests.fakes.engine import Answer, FakeEngine, Fault
from tests.fakes.proxy import ProxyProcess, run_proxy
from tests.fakes.replica import KEY as PROCESS_KEY
from tests.fakes.replica import snapshot_of
from tests.integration.http.hostile import (
    BODY,
    CHAT,
    CHUNKED,
    HIDDEN,
    UPSTREAM_BODY,
    Target,
    answers_in,
    check_error,
    chunks,
    in_the_stream,
    refused,
    request,
    under_attack,
    while_it_reads_nothing,
    while_the_engine_thinks,
)
from tests.integration.http.secure_client import SecureClient
from tests.proxy.rig import chat, gateway

CLOSE: Final = b"Connection: close\r\n"
QUICK: Final = ConnectionLimits(head_seconds=0.25, linger_pause_seconds=0.1)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def _said_goodbye(client: Client) -> bool:
    """Whether the server ended the connection in TLS and not only in TCP."""
    assert isinstance(client, SecureClient)
    return client.said_goodbye


async def test_requests_are_served_and_the_connection_kept(tmp_path: Path, authority: Authority) -> None:
    async with under_attack(tmp_path, authority=authority) as target, await target.connect() as client:
        assert isinstance(client, SecureClient)
        assert client.tls.version() == "TLSv1.3"
        for data in (request(), request(CHUNKED, body=None) + chunks(BODY), request(CLOSE)):
            await client.send(data)
            assert (await client.answer()).status == 200
            target.expected.append(UPSTREAM_BODY)
        assert await client.rest() == b""
        assert _said_goodbye(client)


async def test_a_large_body_and_a_large_answer_pass(tmp_path: Path, authority: Authority) -> None:
    async with under_attack(tmp_path, authority=authority) as target, await target.connect() as client:
        target.engine.script("/chat/completions", Answer(body=b"x" * 5_000_000), Answer())
        body = chat(filler="a" * 3_000_000)
        sending = asyncio.create_task(client.send(request(body=body)))
        assert (await client.answer()).body == b"x" * 5_000_000
        await sending
        target.expected = [body.replace(b'"assistant"', b'"fake-model"')]


async def test_a_stream_arrives_as_it_comes(tmp_path: Path, authority: Authority) -> None:
    async with under_attack(tmp_path, authority=authority) as target, await target.connect() as client:
        words = Answer(events=(b"data: first\n\n", b"data: second\n\n"), gap=0.3)
        target.engine.script("/chat/completions", words, Answer())
        await client.send(request(CLOSE, body=chat(stream=True)))
        await client.until(b"data: first\n\n")
        assert b"second" not in client.received
        assert b"data: second\n\n" in await client.rest()
        assert _said_goodbye(client)
        target.expected = [target.engine.requests[0].body]


async def test_an_answer_that_only_the_end_of_the_connection_ends_is_whole(
    tmp_path: Path, authority: Authority
) -> None:
    async with under_attack(tmp_path, authority=authority) as target, await target.connect() as client:
        line = b"POST " + CHAT + b" HTTP/1.0\r\n"
        await client.send(request(line=line, body=chat(stream=True)))
        (answer,) = answers_in(await client.rest())
        assert answer.body.endswith(b"data: [DONE]\n\n")
        assert _said_goodbye(client)
        target.expected = [target.engine.requests[0].body]


async def test_a_stream_whose_engine_dies_ends_with_an_error_and_without_an_end(
    tmp_path: Path, authority: Authority
) -> None:
    async with under_attack(tmp_path, authority=authority) as target, await target.connect() as client:
        events = tuple(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n' for _ in range(5))
        broken = Answer(events=events, fault=Fault("reset", "mid_body", after=3), gap=0.01)
        target.engine.script("/chat/completions", broken, Answer())
        await client.send(request(body=chat(stream=True)))
        received = await client.rest()
        assert b"upstream_disconnected" in received
        assert b"[DONE]" not in received
        assert not received.endswith(b"0\r\n\r\n")
        target.expected = [target.engine.requests[0].body]


async def test_a_cut_answer_that_only_the_end_would_end_is_not_taken_for_whole(
    tmp_path: Path, authority: Authority
) -> None:
    async with under_attack(tmp_path, authority=authority) as target, await target.connect() as client:
        events = tuple(b"data: {}\n\n" for _ in range(5))
        broken = Answer(events=events, fault=Fault("reset", "mid_body", after=3), gap=0.01)
        target.engine.script("/chat/completions", broken, Answer())
        line = b"POST " + CHAT + b" HTTP/1.0\r\n"
        await client.send(request(line=line, body=chat(stream=True)))
        with contextlib.suppress(ConnectionResetError):
            await client.rest()
        assert not _said_goodbye(client)
        target.expected = [target.engine.requests[0].body]


@pytest.mark.parametrize("size", [100, 100_000, 3_000_000])
@pytest.mark.parametrize(
    ("head", "status"),
    [(request(CLOSE, auth=b"", body=None)[:-2], 401), (b"canary\r\n\r\n", 400)],
    ids=["no key", "malformed"],
)
async def test_an_answer_is_not_lost_to_a_client_that_is_still_sending(
    tmp_path: Path, authority: Authority, head: bytes, status: int, size: int
) -> None:
    """It reads nothing before it has sent everything, in pieces, and is never reset."""
    async with under_attack(tmp_path, authority=authority) as target, await target.connect() as client:
        content = (HIDDEN * (size // len(HIDDEN) + 1))[:size]
        await client.send(head + b"Content-Length: %d\r\n\r\n" % size)
        for at in range(0, size, 100_000):
            await client.send(content[at : at + 100_000])
            await asyncio.sleep(0.002)
        refused(answers_in(await client.rest()), status)


NOT_TLS: Final = {
    "plain http": request(),
    "a word": b"canary\r\n\r\n",
    "zeros": bytes(1_000),
    "nothing": b"",
    "a record of another version": b"\x16\x09\x09\x00\x05hello",
    "an endless record": b"\x16\x03\x01\xff\xff" + b"\x01" * 100_000,
    "an alert": b"\x15\x03\x01\x00\x02\x02\x28",
    "application data": b"\x17\x03\x03\x00\x10" + bytes(16),
    "a hello that is none": b"\x16\x03\x01\x00\x40\x01\x00\x00\x3c\x03\x03" + b"\xff" * 53,
}


@pytest.mark.parametrize("case", NOT_TLS)
async def test_what_is_no_tls_is_closed_without_a_word(
    tmp_path: Path, authority: Authority, case: str
) -> None:
    async with (
        under_attack(tmp_path, authority=authority, handshake_seconds=0.3) as target,
        await target.connect_plain() as client,
    ):
        received = b""
        with contextlib.suppress(ConnectionError):
            await client.send(NOT_TLS[case])
            received = await client.rest()
        # At most an alert, which is TLS: nothing that could be taken for HTTP.
        assert len(received) <= 7
        assert not received.startswith(b"HTTP")
        assert target.gateway.server.inflight == 0


@pytest.mark.parametrize("leaving", ["stays", "closes", "resets", "half-closes"])
async def test_a_client_that_stops_in_the_handshake_is_dropped(
    tmp_path: Path, authority: Authority, leaving: str
) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    hello = authority.client_context().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        hello.do_handshake()
    whole = outgoing.read()
    async with under_attack(tmp_path, authority=authority, handshake_seconds=0.3) as target:
        for sent in (whole[:50], whole):
            client = await target.connect_plain()
            await client.send(sent)
            if leaving == "closes":
                client.raw.close()
            elif leaving == "resets":
                client.reset()
            else:
                if leaving == "half-closes":
                    client.half_close()
                with contextlib.suppress(ConnectionError):
                    await client.rest()
                client.raw.close()


async def test_a_client_that_does_not_trust_the_certificate_leaves_no_trace(
    tmp_path: Path, authority: Authority
) -> None:
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other", "another authority")
    async with under_attack(tmp_path, authority=authority) as target:
        plain = await target.connect_plain()
        client = SecureClient(plain.raw, stranger.client_context())
        with pytest.raises(ssl.SSLCertVerificationError):
            await client.shake_hands()
        client.raw.close()


@pytest.mark.parametrize("sent", [b"canary\r\n\r\n", request(b"Content-Length: 3\r\n"), request(host=b"")])
async def test_malformed_requests_are_refused_within_tls(
    tmp_path: Path, authority: Authority, sent: bytes
) -> None:
    async with under_attack(tmp_path, authority=authority) as target:
        refused(await target.send(sent + HIDDEN), 400, "malformed_request")


async def test_slow_heads_and_bodies_are_given_up_within_tls(tmp_path: Path, authority: Authority) -> None:
    short = BodyLimits(pause_seconds=0.25, pace_seconds=0.25)
    async with under_attack(tmp_path, authority=authority, connection=QUICK, body=short) as target:
        refused(await target.send(request()[:50]), 408, "request_timeout")
        (answer,) = await target.send(request(body=chat())[:-5])
        check_error(answer, 408, "request_timeout")


async def _in_the_body(_: Target, client: Client) -> None:
    await client.send(request()[:-10])


PHASES: Final = (_in_the_body, while_the_engine_thinks, in_the_stream, while_it_reads_nothing)


@pytest.mark.parametrize(
    "leaving",
    [Client.reset, lambda client: client.raw.close(), Client.half_close, SecureClient.half_close],
    ids=["reset", "close", "half-close of tcp", "half-close of tls"],
)
@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.__name__.strip("_"))
async def test_a_client_that_goes_leaves_nothing_behind_in_any_phase(
    tmp_path: Path,
    authority: Authority,
    phase: Callable[[Target, Client], Awaitable[None]],
    leaving: Callable[[Client], None],
) -> None:
    # uvloop does not tell of an end of TCP alone behind an answer that nobody takes: that client is stalled.
    times = RelayTimes(stalled=0.5)
    async with under_attack(tmp_path, authority=authority, times=times) as target:
        client = await target.connect(receive_buffer=4096)
        await phase(target, client)
        leaving(client)
        await target.settled()
        await eventually(lambda: all(received.settled.is_set() for received in target.engine.requests))
        assert len(target.engine.requests) <= 1
        target.expected = [received.body for received in target.engine.requests]
        client.raw.close()


# As a process


async def _serial(proxy: ProxyProcess, authority: Authority) -> int:
    port = int(proxy.url.rpartition(":")[2])
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=authority.client_context())
    certificate = writer.get_extra_info("ssl_object").getpeercert()
    writer.close()
    await writer.wait_closed()
    return int(certificate["serialNumber"], 16)


async def test_a_process_renews_its_certificate_under_a_running_stream(authority: Authority) -> None:
    first = authority.issue("127.0.0.1")
    async with FakeEngine.start() as engine, FakeControl.start() as control:
        control.publish(snapshot_of(engine.url))
        engine.script("/chat/completions", Answer(events=tuple(b"data: x\n\n" for _ in range(200)), gap=0.05))
        async with run_proxy(*first.flags, control_url=control.url) as proxy:
            assert proxy.url.startswith("https://127.0.0.1:")
            await proxy.until("snapshot accepted")
            port = int(proxy.url.rpartition(":")[2])
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=authority.client_context())
            head = request(auth=f"Authorization: Bearer {PROCESS_KEY}\r\n".encode(), body=chat(stream=True))
            writer.write(head)
            await reader.readuntil(b"data: x\n\n")
            assert await _serial(proxy, authority) == first.serial
            second = authority.issue("127.0.0.1")
            proxy.send(signal.SIGHUP)
            await proxy.until("certificate renewed")
            assert await _serial(proxy, authority) == second.serial
            await reader.readuntil(b"data: x\n\n")
            writer.close()
            second.key.write_text("nothing", encoding="utf-8")
            proxy.send(signal.SIGHUP)
            line = await proxy.until("certificate not renewed, the old one stays")
            assert "--tls-key: holds no private key" in line["reason"]
            assert await _serial(proxy, authority) == second.serial
            assert not [logged for logged in proxy.logged if logged["event"] == "loop failed"]


async def test_idle_clients_that_never_say_goodbye_do_not_hold_up_the_end(authority: Authority) -> None:
    async with FakeControl.start() as control:
        flags = (*authority.issue("127.0.0.1").flags, "--drain-delay", "0", "--shutdown-grace", "20")
        async with run_proxy(*flags, control_url=control.url) as proxy:
            port = int(proxy.url.rpartition(":")[2])
            idle = [await SecureClient.connect(port, authority, receive_buffer=4096) for _ in range(3)]
            silent = await asyncio.open_connection("127.0.0.1", port)  # in the handshake
            proxy.send(signal.SIGTERM)
            assert await proxy.exited(10) == 0
            for client in idle:
                client.raw.close()
            silent[1].close()
    assert not [line for line in proxy.logged if line.get("level") in ("warning", "error")]


async def test_a_client_that_makes_room_is_not_asked_whether_it_agrees(
    tmp_path: Path, authority: Authority
) -> None:
    """Else those that only connect would hold their files for as long as TLS waits for their goodbye."""
    limits = EdgeSettings(max_inflight=9, max_connections=1)
    tls = authority.server_context("127.0.0.1")
    async with (
        FakeEngine.start() as engine,
        gateway(tmp_path, engine, edge=limits, tls=tls) as proxy,
        await SecureClient.connect(proxy.port, authority, receive_buffer=65_536),
    ):
        await eventually(lambda: proxy.server.connections != [])
        [first] = proxy.server.connections
        async with await SecureClient.connect(proxy.port, authority, receive_buffer=65_536):
            await eventually(lambda: first.transport is None, 2)
