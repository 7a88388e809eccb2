"""What the tests of hostile engines share: a gateway in front of one, a client that reads bytes and believes
nothing, and the count of what stays behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

from tests.fakes.edge import eventually
from tests.fakes.engine import Answer, FakeEngine
from tests.proxy.rig import KEY, Gateway, chat, gateway

CHAT = "/chat/completions"
PATH = "/v1" + CHAT

_HEAD = re.compile(rb"HTTP/1\.1 \d{3} [ -~]+\r\n(?:[!-9;-~]+: [ -~\x80-\xff]*\r\n)*\r\n")
"""A head in which nothing can hide: no control characters, no bare line ends, no empty names."""


class Seen(msgspec.Struct):
    """A response as bytes. `whole` is false when the connection ended before the response did."""

    status: int
    head: bytes
    body: bytes
    whole: bool

    @property
    def code(self) -> Any:
        return msgspec.json.decode(self.body)["error"]["code"]


def request(body: bytes | None = None, *, last: bool = True) -> bytes:
    """A call's bytes; `last`: the connection is to be closed after it."""
    content = chat() if body is None else body
    close = "connection: close\r\n" if last else ""
    head = (
        f"POST {PATH} HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer {KEY}\r\n"
        f"content-type: application/json\r\n{close}content-length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


async def call(proxy: Gateway, body: bytes | None = None) -> Seen:
    """One call on a connection of its own, read until it is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    try:
        writer.write(request(body))
        received = bytearray()
        with contextlib.suppress(ConnectionResetError):
            async with asyncio.timeout(10):
                while piece := await reader.read(65_536):
                    received += piece
        return seen(bytes(received))
    finally:
        writer.close()


def seen(received: bytes) -> Seen:
    """Reads one response that must be all that was received."""
    found = _HEAD.match(received)
    assert found is not None, received[:300]
    head, rest = found[0], received[found.end() :]
    status = int(head[9:12])
    length = re.search(rb"\r\ncontent-length: (\d+)\r\n", head, re.IGNORECASE)
    if length is not None:
        assert len(rest) <= int(length[1]), "more than it says"
        return Seen(status, head, rest, whole=len(rest) == int(length[1]))
    if re.search(rb"\r\ntransfer-encoding: chunked\r\n", head, re.IGNORECASE) is None:
        assert status == 204, "neither length nor chunks"
        return Seen(status, head, rest, whole=not rest)
    body = b""
    while rest:
        line, _, rest = rest.partition(b"\r\n")
        size = int(line, 16)
        if not size:
            assert rest == b"\r\n"
            return Seen(status, head, body, whole=True)
        body += rest[:size]
        rest = rest[size + 2 :]
    return Seen(status, head, body, whole=False)


def sockets() -> int:
    """Those that this process has open."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            count += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
    return count


@contextlib.asynccontextmanager
async def facing(
    folder: Path, *answers: Answer, **settings: Any
) -> AsyncIterator[tuple[Gateway, FakeEngine]]:
    """A gateway in front of an engine with these answers, the usual ones after them. At the end nothing may
    be in flight, no traceback logged, no task and no socket left."""
    async with spotless(), FakeEngine.start() as engine:
        if answers:
            engine.script(CHAT, *answers, Answer())
        async with gateway(folder, engine, **settings) as proxy:
            yield proxy, engine
            await quiet(proxy)


async def quiet(proxy: Gateway) -> None:
    """Nothing is in flight, and nothing went wrong that was not foreseen."""
    await eventually(lambda: proxy.inflight == 0)
    text = proxy.log_text()
    assert "Traceback" not in text
    assert "exception" not in text


@contextlib.asynccontextmanager
async def spotless() -> AsyncIterator[None]:
    """Every task and socket that is made inside is gone at the end; the event loop has no complaints."""
    loop = asyncio.get_running_loop()
    complaints: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    tasks, before = asyncio.all_tasks(), sockets()
    yield
    await eventually(lambda: sockets() <= before and asyncio.all_tasks() <= tasks)
    assert not complaints


def failed(seen: Seen) -> None:
    """The attempt failed, and the client hears nothing of what the engine sent."""
    assert (seen.status, seen.whole) == (502, True)
    assert seen.code == "upstream_unavailable"
