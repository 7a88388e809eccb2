"""Large uploads: memory stays flat, the model may come last, and no attempt, refusal or client that leaves
costs more than it must."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from tests.fakes.edge import eventually
from tests.fakes.engine import Answer, FakeEngine, Fault
from tests.fakes.forms import Field, audio, encode_form, form_type
from tests.integration.http.processes import Proxy, real_proxy
from tests.proxy.fleet import apart
from tests.proxy.rig import KEY, Answered, Client, gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH: Final = "/audio/transcriptions"
FORM: Final = {"content-type": form_type()}
MIB: Final = 1024 * 1024
LIMIT: Final = 64 * MIB
GROWTH_BYTES: Final = 10_000_000
NAME: Final = Field("model", b"assistant")
TEXT: Final = b'{"text":"hello"}'


def form(size: int) -> bytes:
    return encode_form(Field("file", audio(size), "a.wav"), Field("language", b"nl"), NAME)


def renamed(body: bytes) -> bytes:
    return body.replace(b"\r\n\r\nassistant", b"\r\n\r\nfake-model")


def bodies(engine: FakeEngine) -> list[bytes]:
    """Of the uploads: the engine is probed as well."""
    return [bytes(request.body) for request in engine.requests if request.route == PATH]


@pytest.fixture(scope="module")
def large() -> bytes:
    return form(30_000_000)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def served() -> AsyncIterator[tuple[FakeEngine, Proxy]]:
    async with FakeEngine.start() as engine, real_proxy(engine) as proxy:
        yield engine, proxy


@pytest.fixture
def engine(served: tuple[FakeEngine, Proxy]) -> FakeEngine:
    engine = served[0]
    engine.requests.clear()
    engine.script(PATH, Answer(body=TEXT))
    return engine


@pytest.fixture
def proxy(served: tuple[FakeEngine, Proxy]) -> Proxy:
    return served[1]


async def test_memory_stays_flat_while_thirty_megabytes_pass(
    proxy: Proxy, engine: FakeEngine, large: bytes
) -> None:
    with proxy.flat(GROWTH_BYTES):
        answer = await proxy.post("/v1" + PATH, large, FORM)
    assert (answer.status, answer.body) == (200, TEXT)
    assert bodies(engine) == [renamed(large)]
    await eventually(lambda: proxy.temporary_files() == 0)


async def test_memory_stays_flat_while_an_engine_is_slow_to_take_it(
    proxy: Proxy, engine: FakeEngine, large: bytes
) -> None:
    engine.script(PATH, Answer(body=TEXT, fault=Fault("stall")))
    with proxy.flat(GROWTH_BYTES):
        client = await proxy.connect()
        client.writer.write(head(len(large)) + large)
        await eventually(lambda: engine.hits(PATH) == 1, 10)
        assert proxy.temporary_files() == 1
        client.close()
        await eventually(lambda: proxy.temporary_files() == 0)


async def test_a_client_that_leaves_during_its_upload_leaves_nothing_behind(
    proxy: Proxy, engine: FakeEngine, large: bytes
) -> None:
    client = await proxy.connect()
    client.writer.write(head(len(large)) + large[:-100])
    await eventually(lambda: proxy.temporary_files() == 1, 10)
    client.close()
    await eventually(lambda: proxy.temporary_files() == 0)
    assert engine.hits(PATH) == 0


async def test_an_upload_that_fails_goes_whole_to_the_next_engine(tmp_path: Path) -> None:
    body = form(3_500_000)
    async with contextlib.AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(FakeEngine.start()) for _ in range(3)]
        for engine, answer in zip(
            engines, (Answer(status=500), Answer(status=503, early=True), Answer(body=TEXT)), strict=True
        ):
            engine.script(PATH, answer)
        gate = await stack.enter_async_context(gateway(tmp_path, *engines))
        apart(gate)
        given = await gate.post("/v1" + PATH, body, FORM)
        assert (given.status, given.body) == (200, TEXT)
        assert engines[0].requests[0].body == engines[2].requests[0].body == renamed(body)
        assert (await gate.events.get()).attempts == 3
        assert gate.spools.open_files == 0


async def test_an_engine_that_refuses_early_is_heard_and_spared_the_rest(
    proxy: Proxy, engine: FakeEngine, large: bytes
) -> None:
    too_large = b'{"error":{"message":"Maximum content size limit exceeded"}}'
    engine.script(PATH, Answer(status=413, early=True, close=True, body=too_large))
    answer = await proxy.post("/v1" + PATH, large, FORM)
    assert (answer.status, answer.body) == (413, too_large)
    await eventually(lambda: proxy.temporary_files() == 0)
    [sent] = [request for request in engine.requests if request.route == PATH]
    await eventually(lambda: sent.connection.closed_at is not None)


def head(length: int | None, kind: str = form_type(), key: str = "sk-a-key-for-tests") -> bytes:
    framing = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
    path = PATH if kind == form_type() else "/chat/completions"
    return (
        f"POST /v1{path} HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer {key}\r\n"
        f"content-type: {kind}\r\n{framing}\r\n\r\n"
    ).encode()


async def send_chunks(client: Client, *parts: bytes) -> None:
    """Sends until all is sent, or the other side wants no more."""
    with contextlib.suppress(ConnectionError):
        for part in parts:
            for at in range(0, len(part), MIB):
                piece = part[at : at + MIB]
                client.writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                await client.writer.drain()
        client.writer.write(b"0\r\n\r\n")


async def refused(proxy: Proxy, client: Client) -> None:
    """A 413 in our shape; then the connection serves the next request or has been closed."""
    answer = await client.answer()
    assert (answer.status, answer.code) == (413, "request_too_large")
    assert answer.json()["error"]["message"] == f"the request body exceeds {LIMIT} bytes"
    if answer.headers.get("connection") == "close":
        async with asyncio.timeout(10):
            assert await client.reader.read() == b""
    client.close()


@pytest.mark.parametrize("kind", [form_type(), "application/json"], ids=("form", "json"))
async def test_one_byte_over_the_limit_is_refused(proxy: Proxy, engine: FakeEngine, kind: str) -> None:
    client = await proxy.connect()
    client.writer.write(head(LIMIT + 1, kind))
    await refused(proxy, client)  # upon its declared length

    opened = encode_form(Field("file", b"", "a")).partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
    start = opened if kind == form_type() else b'{"model":"'
    client = await proxy.connect()
    client.writer.write(head(None, kind))
    filler = b"a" * MIB
    rest = LIMIT + 1 - len(start)
    sending = asyncio.create_task(send_chunks(client, start, *[filler] * (rest // MIB), filler[: rest % MIB]))
    await refused(proxy, client)  # as it streams in
    await sending
    assert engine.hits(PATH) == engine.hits("/chat/completions") == 0
    await eventually(lambda: proxy.temporary_files() == 0)


async def test_a_form_of_exactly_the_limit_passes(proxy: Proxy, engine: FakeEngine) -> None:
    body = form(LIMIT - len(form(0)))
    assert len(body) == LIMIT
    with proxy.flat(GROWTH_BYTES):
        assert (await proxy.post("/v1" + PATH, body, FORM)).status == 200
    assert [len(sent) for sent in bodies(engine)] == [LIMIT + len("fake-model") - len("assistant")]


@pytest.mark.parametrize("size", [5_000, 3_000_000])
async def test_chunked_forms_and_forms_that_wait_for_the_100_arrive_whole(tmp_path: Path, size: int) -> None:
    body = form(size)
    async with FakeEngine.start() as engine, gateway(tmp_path, engine) as gate:
        engine.script(PATH, Answer(body=TEXT))
        client = await gate.connect()
        client.writer.write(head(None, key=KEY))
        await send_chunks(client, body[:7], body[7:2_000], body[2_000:])
        assert (await client.answer()).body == TEXT
        client.writer.write(
            head(len(body), key=KEY).replace(b"\r\n\r\n", b"\r\nexpect: 100-continue\r\n\r\n")
        )
        assert await client.head() == (100, {})
        client.writer.write(body)
        assert (await client.answer()).body == TEXT
        client.close()
        assert [request.body for request in engine.requests] == [renamed(body)] * 2
        assert gate.spools.open_files == 0


async def test_a_form_is_not_read_for_whoever_has_no_key(tmp_path: Path) -> None:
    async with FakeEngine.start() as engine, gateway(tmp_path, engine) as gate:
        client = await gate.connect()
        client.writer.write(
            head(30_000_000, key="sk-unknown").replace(b"\r\n\r\n", b"\r\nexpect: 100-continue\r\n\r\n")
        )
        answer: Answered = await client.answer()
        assert (answer.status, answer.code) == (401, "invalid_api_key")
        client.close()
