from __future__ import annotations

import asyncio
import random
import socket
import ssl
from pathlib import Path

import pytest

from fastllm_proxy.tls_transport import RECORD_BYTES, TlsTransport
from tests.fakes.certificates import Authority
from tests.fakes.edge import eventually
from tests.fakes.tls_server import tls_server

TEXT = random.Random(1).randbytes(3_000_000)


class Taker(asyncio.BufferedProtocol):
    """Notes everything that it is told."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.pieces: list[int] = []
        self.events: list[str] = []
        self.error: Exception | None = None
        self.lost = asyncio.Event()
        self.pause_after: int | None = None
        self.transport: TlsTransport
        self._buffer = memoryview(bytearray(65_536))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.events.append("made")

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self._buffer[:nbytes]
        self.pieces.append(nbytes)
        if self.pause_after is not None and len(self.pieces) >= self.pause_after:
            self.transport.pause_reading()

    def eof_received(self) -> None:
        self.events.append("eof")

    def connection_lost(self, exc: Exception | None) -> None:
        self.error = exc
        self.events.append("lost")
        self.lost.set()

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def connected(authority: Authority, port: int) -> Taker:
    loop = asyncio.get_running_loop()
    taker = Taker()
    context = ssl.create_default_context(cadata=authority.pem)
    taker.transport = TlsTransport(loop, context, "engine.test", taker)
    await loop.create_connection(lambda: taker.transport, "127.0.0.1", port)
    await taker.transport.ready
    return taker


def echo(secure: ssl.SSLSocket) -> None:
    while data := secure.recv(100_000):
        secure.sendall(data)


def tells(secure: ssl.SSLSocket) -> None:
    """Everything at once, and an end without `close_notify`."""
    secure.recv(1)
    secure.sendall(TEXT)
    secure.shutdown(socket.SHUT_WR)
    secure.recv(1)


async def test_bytes_come_back_as_they_left_whatever_their_pieces(authority: Authority) -> None:
    noise = random.Random(2)
    with tls_server(authority.server_context("engine.test"), echo) as port:
        taker = await connected(authority, port)
        sent = b""
        for size in (0, 1, 16_384, 16_385, RECORD_BYTES, RECORD_BYTES + 1, 300_000):
            parts = [noise.randbytes(size), b"", noise.randbytes(3)]
            taker.transport.writelines([parts[0], memoryview(parts[1]), bytearray(parts[2])])
            taker.transport.write(b"|")
            sent += b"".join(parts) + b"|"
        for _ in range(40):
            taker.transport.pause_reading()
            await asyncio.sleep(0.001)
            taker.transport.resume_reading()
            await asyncio.sleep(0)
        await eventually(lambda: len(taker.received) >= len(sent))
        assert taker.received == sent
        assert max(taker.pieces) <= 65_536
        taker.transport.abort()
        await taker.lost.wait()
        assert taker.error is None
        assert taker.transport.is_closing()


@pytest.mark.parametrize("pause_after", [None, 1, 7])
async def test_what_came_before_an_abrupt_end_is_handed_on_though_nobody_took_it_yet(
    authority: Authority, pause_after: int | None
) -> None:
    with tls_server(authority.server_context("engine.test"), tells) as port:
        taker = await connected(authority, port)
        taker.pause_after = pause_after
        taker.transport.write(b"x")
        if pause_after is not None:
            await eventually(lambda: len(taker.pieces) >= pause_after)
            await asyncio.sleep(0.1)
            assert len(taker.pieces) == pause_after
            assert "lost" not in taker.events
            taker.pause_after = None
            taker.transport.resume_reading()
        await asyncio.wait_for(taker.lost.wait(), 10)
    assert taker.received == TEXT
    assert "eof" not in taker.events
    assert isinstance(taker.error, ssl.SSLEOFError)


async def test_a_proper_end_is_one(authority: Authority) -> None:
    def ends(secure: ssl.SSLSocket) -> None:
        secure.sendall(b"hello")
        secure.unwrap().close()

    with tls_server(authority.server_context("engine.test"), ends) as port:
        taker = await connected(authority, port)
        await asyncio.wait_for(taker.lost.wait(), 5)
    assert taker.received == b"hello"
    assert taker.events == ["made", "eof", "lost"]
    assert taker.error is None


async def test_a_large_write_waits_unencrypted_until_the_peer_takes_it(authority: Authority) -> None:
    go = asyncio.Event()
    loop = asyncio.get_running_loop()
    size = 30_000_000

    def late(secure: ssl.SSLSocket) -> None:
        asyncio.run_coroutine_threadsafe(go.wait(), loop).result(10)
        left = size
        while left:
            left -= len(secure.recv(1_000_000))
        secure.sendall(b"all")
        secure.recv(1)

    with tls_server(authority.server_context("engine.test"), late) as port:
        taker = await connected(authority, port)
        taker.transport.write(bytes(size))
        await asyncio.sleep(0.1)
        assert taker.events == ["made", "pause"]
        held = taker.transport.get_write_buffer_size()
        assert size / 2 < held <= size + RECORD_BYTES
        assert taker.transport._raw.get_write_buffer_size() <= 4 * RECORD_BYTES
        go.set()
        await eventually(lambda: bytes(taker.received) == b"all")
        assert taker.events == ["made", "pause", "resume"]
        assert taker.transport.get_write_buffer_size() == 0
        taker.transport.abort()


async def test_ciphertext_that_was_tampered_with_is_an_error(authority: Authority) -> None:
    def tampered(secure: ssl.SSLSocket) -> None:
        secure.sendall(b"hello")
        plain = socket.socket(fileno=secure.detach())
        with plain:
            plain.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
            plain.recv(1)

    with tls_server(authority.server_context("engine.test"), tampered) as port:
        taker = await connected(authority, port)
        await asyncio.wait_for(taker.lost.wait(), 5)
    assert taker.received == b"hello"
    assert isinstance(taker.error, ssl.SSLError)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
async def test_a_handshake_that_fails_makes_no_connection(authority: Authority, answer: bytes) -> None:
    async def plain(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(plain, "127.0.0.1", 0)
    with pytest.raises(ssl.SSLError):
        await connected(authority, server.sockets[0].getsockname()[1])
    server.close()


async def test_a_handshake_can_be_given_up(authority: Authority) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        connecting = asyncio.create_task(connected(authority, silent.getsockname()[1]))
        await asyncio.sleep(0.05)
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting


def test_what_cannot_be_a_servers_name() -> None:
    loop = asyncio.new_event_loop()
    with pytest.raises(ValueError, match=r"."):
        TlsTransport(loop, ssl.create_default_context(), "", asyncio.BufferedProtocol())
    loop.close()
