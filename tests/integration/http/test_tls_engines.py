"""Engines behind TLS: whom the gateway trusts, what a truncated answer is, and that nothing gets lost."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from fastllm_proxy.pools import PoolFactory
from fastllm_proxy.timers import TimerWheel
from fastllm_proxy.tls_transport import TlsTransport
from fastllm_shared.addresses import AddressPolicy
from tests.fakes.certificates import Authority
from tests.fakes.edge import eventually
from tests.fakes.engine import Answer, FakeEngine
from tests.fakes.tls_server import tls_server
from tests.integration.http.engines import CHAT, call, failed, quiet, spotless
from tests.proxy.rig import chat, gateway

NAME = "engine.test"
JSON = (("content-type", "application/json"),)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def pools(**settings: Any) -> Callable[[TimerWheel], PoolFactory]:
    return lambda timers: PoolFactory(AddressPolicy(), timers, **{"ca_bundle": None, **settings})


def trusting(authority: Authority, **fields: Any) -> dict[str, Any]:
    return {"ca": authority.pem, "server_name": NAME, **fields}


# Whom it trusts.


@pytest.mark.parametrize("place", ["provider", "bundle"])
async def test_a_private_authority_and_connections_that_are_kept(
    tmp_path: Path, authority: Authority, place: str
) -> None:
    bundle = tmp_path / "bundle.pem"
    bundle.write_text(authority.pem)
    names: list[str | None] = []
    context = authority.server_context(NAME)
    context.sni_callback = lambda _, name, __: names.append(name)
    settings = {"ca_bundle": str(bundle)} if place == "bundle" else {}
    fields = {"server_name": NAME} if place == "bundle" else trusting(authority)
    async with (
        spotless(),
        FakeEngine.start(tls=context) as engine,
        gateway(tmp_path, engine, providers=fields, pools=pools(**settings)) as proxy,
    ):
        for _ in range(3):
            got = await call(proxy)
            assert (got.status, got.whole) == (200, True)
        assert len(engine.connections) == 1
        assert names == [NAME]
        await quiet(proxy)


async def test_an_address_instead_of_a_name(tmp_path: Path, authority: Authority) -> None:
    names: list[str | None] = []
    context = authority.server_context("127.0.0.1")
    context.sni_callback = lambda _, name, __: names.append(name)
    async with (
        FakeEngine.start(tls=context) as engine,
        gateway(tmp_path, engine, providers={"ca": authority.pem}) as proxy,
    ):
        assert (await call(proxy)).status == 200
        assert names == [None]  # an address is none


def another_authority(folder: Path) -> Authority:
    (folder / "other").mkdir(exist_ok=True)
    return Authority(folder / "other", "another authority")


def old(authority: Authority) -> ssl.SSLContext:
    context = authority.server_context(NAME)
    context.options &= ~ssl.OP_NO_TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.minimum_version = ssl.TLSVersion.TLSv1_1
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    return context


UNTRUSTED: dict[str, Callable[[Authority, Path], ssl.SSLContext | None]] = {
    "another name": lambda authority, _: authority.server_context("another.test"),
    "expired": lambda authority, _: authority.server_context(NAME, expired=True),
    "an unknown authority": lambda _, folder: another_authority(folder).server_context(NAME),
    "TLS 1.1": lambda authority, _: old(authority),
    "no TLS": lambda _, __: None,
}


@pytest.mark.parametrize("made", UNTRUSTED.values(), ids=UNTRUSTED)
async def test_whom_nobody_vouches_for_gets_no_request(
    tmp_path: Path, authority: Authority, made: Callable[[Authority, Path], ssl.SSLContext | None]
) -> None:
    context = made(authority, tmp_path)
    async with spotless(), FakeEngine.start(tls=context) as engine:
        fields = trusting(authority, api_base=engine.url.replace("http:", "https:"))
        async with gateway(tmp_path, engine, providers=fields, pools=pools(connect_seconds=0.5)) as proxy:
            got = await call(proxy)
            failed(got)
            assert b"certificate" not in got.body.lower()
            assert b"tls" not in got.body.lower()
            assert ("tls: " in proxy.log_text()) is (context is not None)
            assert not engine.requests
            await quiet(proxy)


async def test_a_private_authority_that_nobody_named(tmp_path: Path, authority: Authority) -> None:
    async with (
        FakeEngine.start(tls=authority.server_context(NAME)) as engine,
        gateway(tmp_path, engine, providers={"server_name": NAME}) as proxy,
    ):
        failed(await call(proxy))
        assert "tls: [SSL: CERTIFICATE_VERIFY_FAILED]" in proxy.log_text()


async def test_plain_text_on_a_port_for_tls_and_the_other_way_round(
    tmp_path: Path, authority: Authority
) -> None:
    async with spotless(), FakeEngine.start(tls=authority.server_context(NAME)) as engine:
        plain = {"api_base": engine.url.replace("https:", "http:")}
        async with gateway(tmp_path, engine, providers=plain) as proxy:
            failed(await call(proxy))
            assert not engine.requests
            await quiet(proxy)


async def test_a_handshake_that_hangs_costs_the_time_to_connect(tmp_path: Path, authority: Authority) -> None:
    async with spotless(), FakeEngine.start() as engine:
        engine.accepting = "stall"
        fields = trusting(authority, api_base=engine.url.replace("http:", "https:"))
        async with gateway(tmp_path, engine, providers=fields, pools=pools(connect_seconds=0.1)) as proxy:
            failed(await call(proxy))
            assert "no connect within 0.1 s" in proxy.log_text()
            await eventually(lambda: engine.open_connections == 0)
            await quiet(proxy)


@pytest.mark.parametrize("kind", ["close", "reset"])
async def test_a_handshake_that_is_broken_off(tmp_path: Path, authority: Authority, kind: Any) -> None:
    async with spotless(), FakeEngine.start() as engine:
        engine.accepting = kind
        fields = trusting(authority, api_base=engine.url.replace("http:", "https:"))
        async with gateway(tmp_path, engine, providers=fields) as proxy:
            failed(await call(proxy))
            await quiet(proxy)


# How answers end.


@pytest.mark.parametrize(
    ("framing", "proper", "whole"),
    [
        ("eof", True, True),
        ("eof", False, False),  # anybody on the way can cut a connection
        ("length", False, True),
        ("chunked", False, True),
    ],
)
async def test_an_end_without_close_notify_ends_no_body(
    tmp_path: Path, authority: Authority, framing: str, proper: bool, whole: bool
) -> None:
    body = b"x" * 200_000
    heads = {
        "eof": HEAD + b"\r\n" + body,
        "length": HEAD + b"content-length: 200000\r\n\r\n" + body,
        "chunked": HEAD + b"transfer-encoding: chunked\r\n\r\n30d40\r\n" + body + b"\r\n0\r\n\r\n",
    }

    def talk(secure: ssl.SSLSocket) -> None:
        secure.recv(65_536)
        secure.sendall(heads[framing])
        if proper:
            secure.unwrap().close()
        else:
            secure.shutdown(socket.SHUT_WR)
            secure.recv(1)

    with tls_server(authority.server_context(NAME), talk) as port:
        fields = trusting(authority, api_base=f"https://127.0.0.1:{port}/v1")
        async with FakeEngine.start() as nobody, gateway(tmp_path, nobody, providers=fields) as proxy:
            got = await call(proxy)
            assert (got.status, got.whole) == (200, whole)
            assert got.body == body[: len(got.body)]
            assert proxy.backend(1).pool.idle == 0
            await quiet(proxy)


@pytest.mark.parametrize("slow", [False, True])
async def test_a_large_answer_arrives_whole_though_the_engine_closes_at_once(
    tmp_path: Path, authority: Authority, slow: bool
) -> None:
    size = 12_000_000

    def talk(secure: ssl.SSLSocket) -> None:
        secure.recv(65_536)
        secure.sendall(HEAD + b"connection: close\r\ncontent-length: %d\r\n\r\n" % size)
        secure.sendall(bytes(size))
        secure.shutdown(socket.SHUT_WR)
        secure.recv(1)

    with tls_server(authority.server_context(NAME), talk) as port:
        fields = trusting(authority, api_base=f"https://127.0.0.1:{port}/v1")
        async with FakeEngine.start() as nobody, gateway(tmp_path, nobody, providers=fields) as proxy:
            client = await proxy.connect()
            client.send()
            assert (await client.head())[0] == 200
            left = size
            while left:
                if slow:
                    await asyncio.sleep(0.002)
                piece = await client.reader.read(262_144)
                assert piece, f"{left} bytes were lost"
                left -= len(piece)
            client.close()
            await quiet(proxy)


# Much at once.


async def test_a_large_request_arrives_whole(tmp_path: Path, authority: Authority) -> None:
    body = chat(padding="x" * 3_000_000)
    async with (
        FakeEngine.start(tls=authority.server_context(NAME)) as engine,
        gateway(tmp_path, engine, providers=trusting(authority)) as proxy,
    ):
        assert (await call(proxy, body)).status == 200
        assert engine.requests[0].json()["padding"] == "x" * 3_000_000


async def test_a_slow_reader_stops_the_engines_writer_over_tls(tmp_path: Path, authority: Authority) -> None:
    piece = b"x" * 65_536
    answer = Answer(events=(piece,) * 640, headers=JSON)
    async with spotless(), FakeEngine.start(tls=authority.server_context(NAME)) as engine:
        engine.script(CHAT, answer)
        async with gateway(tmp_path, engine, providers=trusting(authority)) as proxy:
            client = await proxy.connect()
            client.send()
            held = cast(asyncio.Transport, client.writer.transport)
            held.pause_reading()
            sent = -1
            while not engine.connections or sent != engine.connections[0].sent:
                sent = engine.connections[0].sent if engine.connections else -1
                await asyncio.sleep(0.1)
            assert sent < 20_000_000  # what the kernel's buffers hold, twice; of 40 MB
            layers = [found for found in gc.get_objects() if isinstance(found, TlsTransport)]
            assert [layer._stopped for layer in layers if not layer.is_closing()] == [True]
            assert sum(layer._incoming.pending for layer in layers) <= 65_536 + 16_645  # a read, and a record
            held.resume_reading()
            got = await client.answer()
            assert (len(got.body), got.whole) == (640 * len(piece), True)
            client.close()
            await quiet(proxy)
