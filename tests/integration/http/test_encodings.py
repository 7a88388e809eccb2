"""Answers that a backend compressed: unchanged for the client, whatever it asked for, and read for usage
as far as that is bounded."""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from pathlib import Path
from typing import Literal

import pytest

from tests.fakes.engine import Answer, FakeEngine, Fault
from tests.integration.http.processes import real_proxy
from tests.proxy.fleet import fleet
from tests.proxy.rig import Answered, chat

CHAT = "/chat/completions"
MIB = 1024 * 1024
FIGURES = {"prompt_tokens": 11, "completion_tokens": 5, "total_tokens": 16}
UNREADABLE = bytes(range(256)) * 20  # for codings that the gateway does not look into

EVENTS = (
    b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":11,"completion_tokens":5}}\n\n'
    b"data: [DONE]\n\n"
)


def pack(coding: str, text: bytes) -> bytes:
    if coding in ("gzip", "x-gzip", "GZIP"):
        return gzip.compress(text, mtime=0)
    if coding == "deflate":
        return zlib.compress(text)
    if coding == "bare deflate":
        return zlib.compress(text, wbits=-zlib.MAX_WBITS)
    if coding == "deflate, gzip":
        return gzip.compress(zlib.compress(text), mtime=0)
    return UNREADABLE


def compressed(coding: str, text: bytes, **changes: object) -> Answer:
    headers = (("content-encoding", coding.removeprefix("bare ")),)
    return Answer(body=pack(coding, text), headers=headers, **changes)  # type: ignore[arg-type]


def check(got: Answered, answer: Answer) -> None:
    """That it is what the backend sent, and that its headers agree with its bytes."""
    assert (got.status, got.body, got.whole) == (answer.status, answer.body, True)
    assert got.headers["content-encoding"] == dict(answer.headers)["content-encoding"]
    if "content-length" in got.headers:
        assert int(got.headers["content-length"]) == len(got.body)
        assert "transfer-encoding" not in got.headers


@pytest.mark.parametrize("asks", [None, "identity", "gzip, br, zstd"])
@pytest.mark.parametrize("framing", ["length", "chunked", "eof"])
@pytest.mark.parametrize(
    ("coding", "read"),
    [
        ("gzip", True),
        ("x-gzip", True),
        ("GZIP", True),
        ("deflate", True),
        ("bare deflate", True),
        ("br", False),
        ("zstd", False),
        ("deflate, gzip", False),
    ],
)
async def test_an_answer_passes_as_it_was_compressed(
    tmp_path: Path, coding: str, read: bool, framing: Literal["length", "chunked", "eof"], asks: str | None
) -> None:
    text = json.dumps({"choices": [], "usage": FIGURES}).encode()
    answer = compressed(coding, text, framing=framing)
    async with fleet(tmp_path, answer) as (proxy, engines):
        got = await proxy.post(headers={} if asks is None else {"accept-encoding": asks})
        check(got, answer)
        assert ("content-length" in got.headers) is (framing == "length")
        assert engines[0].requests[0].header("accept-encoding") == "identity"
        event = await proxy.events.get()
        figures = (event.usage_reported, event.prompt_tokens, event.completion_tokens)
        assert figures == ((True, 11, 5) if read else (False, None, None))


@pytest.mark.parametrize("coding", ["gzip", "deflate", "bare deflate"])
@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_a_long_answer_is_read_while_it_passes(
    tmp_path: Path, coding: str, framing: Literal["length", "chunked"]
) -> None:
    noise = base64.b64encode(b"".join(zlib.crc32(b"%d" % n).to_bytes(4, "big") for n in range(300_000)))
    text = b'{"data":"%b","usage":%b}' % (noise, json.dumps(FIGURES).encode())
    answer = compressed(coding, text, framing=framing)
    assert answer.body is not None
    assert len(answer.body) > MIB
    async with fleet(tmp_path, answer) as (proxy, _):
        check(await proxy.post(), answer)
        event = await proxy.events.get()
        assert (event.prompt_tokens, event.completion_tokens) == (11, 5)


async def test_identity_is_no_compression(tmp_path: Path) -> None:
    answer = Answer(events=(EVENTS,), headers=(("content-encoding", "identity"),))
    async with fleet(tmp_path, answer) as (proxy, _):
        got = await proxy.post(body=chat(stream=True))
        assert got.body.count(b"data: ") == 2  # the usage event was hidden


async def test_a_compressed_stream_passes_whole_and_is_read(tmp_path: Path) -> None:
    """With the usage event: nothing can be hidden in what is compressed."""
    packer = zlib.compressobj(wbits=31)
    pieces = [packer.compress(part) + packer.flush(zlib.Z_SYNC_FLUSH) for part in EVENTS.splitlines(True)]
    pieces = [*pieces, packer.flush()]
    answer = Answer(events=tuple(pieces), headers=(("content-encoding", "gzip"),), gap=0.01)
    async with fleet(tmp_path, answer) as (proxy, _):
        got = await proxy.post(body=chat(stream=True))
        assert got.body == b"".join(pieces)
        assert gzip.decompress(got.body) == EVENTS
        event = await proxy.events.get()
        assert (event.prompt_tokens, event.completion_tokens) == (11, 5)
        assert event.ttft_ms is not None


async def test_a_compressed_anthropic_stream_is_read_from_both_ends(tmp_path: Path) -> None:
    text = (
        b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":9,'
        b'"output_tokens":1}}}\n\n'
        + b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"text":"hello"}}\n\n'
        * 900
        + b'event: message_delta\ndata: {"type":"message_delta","usage":{"output_tokens":7}}\n\n'
        b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
    )
    answer = Answer(events=(gzip.compress(text),), headers=(("content-encoding", "gzip"),))
    async with fleet(tmp_path, Answer()) as (proxy, engines):
        engines[0].script("/messages", answer)
        got = await proxy.post("/v1/messages", chat(stream=True, max_tokens=5))
        assert gzip.decompress(got.body) == text
        event = await proxy.events.get()
        assert (event.prompt_tokens, event.completion_tokens) == (9, 7)


async def test_a_compressed_stream_that_dies_is_cut_without_a_word(tmp_path: Path) -> None:
    packer = zlib.compressobj(wbits=31)
    pieces = [packer.compress(EVENTS) + packer.flush(zlib.Z_SYNC_FLUSH)] * 3
    fault = Fault("reset", at="mid_body", after=2)
    answer = Answer(events=tuple(pieces), headers=(("content-encoding", "gzip"),), fault=fault, gap=0.02)
    async with fleet(tmp_path, answer) as (proxy, _):
        got = await proxy.post(body=chat(stream=True))
        assert (got.status, got.whole) == (200, False)
        assert b"".join(pieces).startswith(got.body)
        assert (await proxy.events.get()).status == 502


async def test_a_compressed_error_is_judged_by_what_it_says(tmp_path: Path) -> None:
    missing = json.dumps({"error": {"message": "The model `x` does not exist.", "code": "model_not_found"}})
    other = json.dumps({"detail": "no such file"})
    for coding in ("gzip", "deflate", "bare deflate"):
        first = compressed(coding, missing.encode(), status=404)
        async with fleet(tmp_path, first, Answer()) as (proxy, _):
            assert (await proxy.post()).status == 200
            assert "does not exist" in proxy.log_text()
        first = compressed(coding, other.encode(), status=404)
        async with fleet(tmp_path, first, Answer()) as (proxy, _):
            check(await proxy.post(), first)


@pytest.mark.parametrize("status", [400, 429, 500, 503])
@pytest.mark.parametrize("coding", ["gzip", "br"])
async def test_a_compressed_error_reaches_the_client_as_it_came(
    tmp_path: Path, status: int, coding: str
) -> None:
    answer = compressed(coding, b'{"error":{"message":"no"}}', status=status)
    async with fleet(tmp_path, answer) as (proxy, _):
        check(await proxy.post(), answer)


async def test_trailers_and_a_body_of_none_do_not_reach_the_client(tmp_path: Path) -> None:
    trailed = Answer(
        body=pack("gzip", b"{}"),
        framing="chunked",
        headers=(("content-encoding", "gzip"), ("trailer", "x-late")),
        trailers=(("x-late", "1"),),
        interim=(100, 103),
    )
    async with fleet(tmp_path, trailed) as (proxy, engines):
        client = await proxy.connect()
        client.send()
        got = await client.answer()
        check(got, trailed)
        assert "trailer" not in got.headers
        engines[0].script(CHAT, Answer(status=204))
        client.send()  # what followed the last chunk would be in the way
        assert (await client.head())[0] == 204
        engines[0].script(CHAT, Answer())
        client.send()
        assert (await client.answer()).status == 200
        client.close()


def bombs() -> list[tuple[bytes, str]]:
    """Compressed bytes and the framing that they come in: short enough to be read whole, and longer."""
    blank = b" " * (16 * MIB)
    return [
        (gzip.compress(blank), "length"),
        (gzip.compress(blank, 1), "length"),
        (gzip.compress(blank, 1), "chunked"),
        (gzip.compress(blank) * 20, "chunked"),
    ]


async def test_a_bomb_passes_and_costs_no_memory() -> None:
    answers = [
        Answer(body=data, framing=framing, headers=(("content-encoding", "gzip"),))  # type: ignore[arg-type]
        for data, framing in bombs()
    ]
    path = "/v1/embeddings"
    async with FakeEngine.start() as engine, real_proxy(engine) as proxy:
        assert (await proxy.post(path, chat(), {})).status == 200
        with proxy.flat(10 * MIB):
            for answer in answers:
                engine.script(path, answer)
                check(await proxy.post(path, chat(), {}), answer)
