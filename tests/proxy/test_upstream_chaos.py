"""Whatever an engine does and whenever callers leave: nobody gets another's answer, nothing stays behind."""

from __future__ import annotations

import asyncio
import gc
import json
import random

import pytest

from fastllm_proxy.errors import ConnectionReset, UpstreamError
from fastllm_proxy.upstream import UpstreamConnection, UpstreamPool
from tests.fakes.engine import Answer, FakeEngine, Fault
from tests.fakes.upstreams import CHAT, ask, pool_to, read_all, wheel

CALLERS = 16
REQUESTS = 600


def answers(noise: random.Random) -> list[Answer]:
    """Mostly good ones, and every way to go wrong among them."""
    second = b'HTTP/1.1 200 OK\r\ncontent-length: 18\r\n\r\n{"model":"nobody"}'
    bad = [
        Answer(trailing=second),
        Answer(trailing=b"\r\n"),
        Answer(close=True),
        Answer(interim=(100, 103)),
        Answer(bytes_per_send=40),
        Answer(framing="chunked"),
        Answer(framing="eof"),
        Answer(declared_length=20),
        Answer(declared_length=5_000, close=True),
        Answer(status=500),
        Answer(delay_to_head=0.03),
        *(
            Answer(fault=Fault(kind, at=at))
            for kind in ("reset", "close", "half_close", "stall")
            for at in ("request", "mid_head", "body", "end", "idle")
        ),
    ]
    return [noise.choice(bad) if noise.random() < 0.5 else Answer() for _ in range(REQUESTS)]


async def one_request(pool: UpstreamPool, number: int, noise: random.Random) -> str:
    """The model that the answer names; what is not whole raises."""
    connection: UpstreamConnection = pool.take() or await pool.connect()
    try:
        body = json.dumps({"model": f"model-{number}", "stream": noise.random() < 0.3}).encode()
        ask(connection, body)
        head = await connection.head(0.1)
        if noise.random() < 0.1:
            return f"model-{number}"  # leaves without reading
        text = b""
        if noise.random() < 0.5:
            text = await read_all(connection, 0.1)
        else:
            pieces: list[bytes] = []
            await connection.pipe(pieces.append, 0.1)
            text = b"".join(pieces)
        if head.status != 200:
            return f"model-{number}"
        if text.startswith(b"data: "):
            text = text.split(b"\n", 1)[0][6:]
        return str(json.loads(text)["model"])
    finally:
        connection.release()


@pytest.mark.parametrize("seed", range(4))
async def test_nobody_gets_anothers_answer_and_nothing_stays_behind(seed: int) -> None:
    noise = random.Random(seed)
    timers = wheel()
    outcomes: dict[str, int] = {}
    numbers = iter(range(REQUESTS))

    async def caller() -> None:
        for number in numbers:
            patience = noise.choice((None, None, 0.002, 0.02))
            try:
                async with asyncio.timeout(patience):
                    named = await one_request(pool, number, noise)
                assert named == f"model-{number}"
                outcome = "answered"
            except (UpstreamError, TimeoutError, ValueError) as error:
                # ValueError: cut short by a length that was a lie, which only the reader of JSON can tell.
                outcome = type(error).__name__
            outcomes[outcome] = outcomes.get(outcome, 0) + 1

    async with FakeEngine.start() as engine:
        engine.script(CHAT, *answers(noise))
        pool = pool_to(engine.port, timers=timers)
        await asyncio.gather(*(caller() for _ in range(CALLERS)))
        assert outcomes["answered"] > REQUESTS / 20
        assert outcomes[ConnectionReset.__name__] > 0
        assert len(engine.connections) < len(engine.requests)  # some were used again
        await pool.close()
        async with asyncio.timeout(5):
            await asyncio.gather(*(connection.closed.wait() for connection in engine.connections))
    await asyncio.sleep(0.05)
    assert timers._handle is None
    gc.collect()  # a future whose error nobody took, or a socket left open, would warn here
