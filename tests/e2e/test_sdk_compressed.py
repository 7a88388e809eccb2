"""Answers that an engine compresses though nobody asked: OpenAI's SDK reads them."""

from __future__ import annotations

import zlib

import openai
import pytest

from tests.fakes.engine import Answer, FakeEngine

CHAT = "/chat/completions"
SAID = "Hello from the fake engine."
EVENTS = (
    b'data: {"id":"1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,'
    b'"delta":{"role":"assistant","content":"Hello"},"finish_reason":null}]}\n\n',
    b'data: {"id":"1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,'
    b'"delta":{"content":" there"},"finish_reason":"stop"}]}\n\n',
    b"data: [DONE]\n\n",
)


async def test_a_compressed_answer(client: openai.AsyncOpenAI, model: str, engine: FakeEngine) -> None:
    engine.script(CHAT, Answer(gzip=True))
    raw = await client.chat.completions.with_raw_response.create(
        model=model, messages=[{"role": "user", "content": "hi"}]
    )
    assert raw.headers["content-encoding"] == "gzip"
    assert raw.parse().choices[0].message.content == SAID


@pytest.mark.parametrize(("coding", "window"), [("gzip", 31), ("deflate", 15), ("deflate", -15)])
async def test_a_compressed_stream(
    client: openai.AsyncOpenAI, model: str, engine: FakeEngine, coding: str, window: int
) -> None:
    packer = zlib.compressobj(wbits=window)
    pieces = [packer.compress(event) + packer.flush(zlib.Z_SYNC_FLUSH) for event in EVENTS]
    engine.script(CHAT, Answer(events=(*pieces, packer.flush()), headers=(("content-encoding", coding),)))
    stream = await client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "hi"}], stream=True
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello there"
