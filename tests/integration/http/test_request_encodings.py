"""Compressed request bodies reach the engine as identity, on every kind of body; what does not decode is
refused, and a bomb costs no memory."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from tests.fakes.engine import Answer, FakeEngine
from tests.fakes.forms import Field, audio, encode_form, form_type
from tests.integration.http.processes import Proxy, real_proxy
from tests.proxy.rig import KEY, Gateway, chat, gateway

CHAT: Final = "/chat/completions"
FORMS: Final = "/audio/transcriptions"
MIB: Final = 1024 * 1024
NAME: Final = Field("model", b"assistant")


def raw_deflate(data: bytes) -> bytes:
    return zlib.compress(data, wbits=-zlib.MAX_WBITS)


def members(data: bytes) -> bytes:
    return b"".join(gzip.compress(data[at : at + 50_000]) for at in range(0, len(data), 50_000))


ENCODINGS: Final[dict[str, tuple[str, Callable[[bytes], bytes]]]] = {
    "gzip": ("gzip", gzip.compress),
    "x-gzip": ("X-Gzip", gzip.compress),
    "several members": ("gzip", members),
    "zlib": ("deflate", zlib.compress),
    "raw deflate": ("deflate", raw_deflate),
}

BODIES: Final[dict[str, tuple[str, str, bytes]]] = {
    "json": (CHAT, "application/json", chat(messages=[{"role": "user", "content": "é" * 90_000}])),
    "form": (FORMS, form_type(), encode_form(Field("file", audio(200_000), "a"), NAME)),
    "large form": (FORMS, form_type(), encode_form(Field("file", audio(1_800_000), "a"), NAME)),
}


def renamed(body: bytes) -> bytes:
    before, _, after = body.rpartition(b"assistant") if body[:1] == b"-" else body.partition(b"assistant")
    return before + b"fake-model" + after


def request_head(path: str, kind: str, *more: str) -> bytes:
    lines = (
        f"POST /v1{path} HTTP/1.1",
        "host: g",
        f"authorization: Bearer {KEY}",
        f"content-type: {kind}",
        *more,
    )
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with FakeEngine.start() as running:
        yield running


@pytest.fixture
async def proxy(tmp_path: Path, engine: FakeEngine) -> AsyncIterator[Gateway]:
    async with gateway(tmp_path, engine) as running:
        yield running
        assert running.server._budget.held == 0
        assert running.spools.open_files == 0


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("encoding", ENCODINGS)
async def test_the_engine_gets_it_as_identity(
    proxy: Gateway, engine: FakeEngine, encoding: str, body: str
) -> None:
    path, kind, plain = BODIES[body]
    name, encode = ENCODINGS[encoding]
    answer = await proxy.post("/v1" + path, encode(plain), {"content-type": kind, "content-encoding": name})
    assert answer.status == 200
    sent = engine.requests[0]
    assert sent.body == renamed(plain)
    assert sent.header("content-encoding") is None
    assert sent.header("content-length") == str(len(sent.body))


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("coded", [False, True], ids=("plain", "gzip"))
async def test_chunks_and_100_continue_are_the_same_body(
    proxy: Gateway, engine: FakeEngine, body: str, coded: bool
) -> None:
    path, kind, plain = BODIES[body]
    data = gzip.compress(plain) if coded else plain
    more = ("content-encoding: gzip",) if coded else ()
    client = await proxy.connect()
    client.writer.write(request_head(path, kind, "transfer-encoding: chunked", "expect: 100-continue", *more))
    assert await client.head() == (100, {})
    for at in range(0, len(data), 60_000):
        piece = data[at : at + 60_000]
        client.writer.write(b"%x;ext=1\r\n%b\r\n" % (len(piece), piece))
    client.writer.write(b"0\r\n\r\n")
    assert (await client.answer()).status == 200
    client.writer.write(request_head(path, kind, f"content-length: {len(data)}", *more))
    for at in range(0, len(data), 60_000):
        client.writer.write(data[at : at + 60_000])
        await client.writer.drain()
    assert (await client.answer()).status == 200
    client.close()
    assert [request.body for request in engine.requests] == [renamed(plain)] * 2
    assert all(request.header("transfer-encoding") is None for request in engine.requests)


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("name", ["br", "zstd", "compress", "gzip, gzip", "nonsense"])
async def test_an_unknown_encoding_is_refused(
    proxy: Gateway, engine: FakeEngine, body: str, name: str
) -> None:
    path, kind, plain = BODIES[body]
    answer = await proxy.post("/v1" + path, plain, {"content-type": kind, "content-encoding": name})
    assert (answer.status, answer.code) == (415, "unsupported_encoding")
    assert engine.requests == []


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("harm", ["truncated", "trailing garbage"])
async def test_what_does_not_decode_is_refused(
    proxy: Gateway, engine: FakeEngine, encoding: str, body: str, harm: str
) -> None:
    path, kind, plain = BODIES[body]
    name, encode = ENCODINGS[encoding]
    data = encode(plain)[:-1] if harm == "truncated" else encode(plain) + b"garbage"
    answer = await proxy.post("/v1" + path, data, {"content-type": kind, "content-encoding": name})
    assert (answer.status, answer.code) == (400, "invalid_encoding")
    assert engine.requests == []


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def served() -> AsyncIterator[Proxy]:
    async with FakeEngine.start() as engine:
        engine.script(FORMS, Answer(body=b"{}"))
        async with real_proxy(engine) as proxy:
            yield proxy


def bombs() -> dict[str, bytes]:
    """A gibibyte each, from a mebibyte."""
    member = gzip.compress(bytes(16 * MIB))
    form = encode_form(Field("file", b"", "a")).partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
    squeezer = zlib.compressobj(1, wbits=15)
    whole = b"".join(squeezer.compress(bytes(MIB)) for _ in range(80)) + squeezer.flush()
    return {"members": member * 64, "form": gzip.compress(form) + member * 64, "zlib": whole}


@pytest.mark.asyncio(loop_scope="module")
async def test_a_bomb_is_refused_and_memory_stays_flat(served: Proxy) -> None:
    for name, data in bombs().items():
        path, kind = (FORMS, form_type()) if name == "form" else (CHAT, "application/json")
        coding = "deflate" if name == "zlib" else "gzip"
        with served.flat(10_000_000):
            answer = await served.post("/v1" + path, data, {"content-type": kind, "content-encoding": coding})
        assert (answer.status, answer.code) == (413, "request_too_large")
    assert served.temporary_files() == 0
