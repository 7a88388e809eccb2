"""A gateway that is attacked over raw sockets, and the proof that nothing came of it.

    async with under_attack(tmp_path) as target:
        answers = await target.send(b"GET / HTTP/9.9\\r\\n\\r\\n" + HIDDEN)
        refused(answers, 400, "malformed_request")
        target.expected = [...]         # bodies that the engine must have got by the end; none unless said

When the block ends the gateway must be as it was: nothing in flight, nothing buffered, no error in any log,
nobody's secret in a log, a further client served, and with the engine exactly the expected requests, each
framed by one length.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from fastllm_proxy.accept import EdgeSettings
from fastllm_proxy.body import BodyLimits
from fastllm_proxy.heads import ConnectionLimits
from tests.fakes.certificates import Authority
from tests.fakes.edge import Answer, Client, eventually
from tests.fakes.engine import Answer as Reply
from tests.fakes.engine import FakeEngine
from tests.integration.http.secure_client import SecureClient
from tests.proxy.rig import CREDENTIAL, KEY, Gateway, chat, gateway

CANARY = b"canary"
"""In everything that is sent and must not be seen again."""

AUTH = f"Authorization: Bearer {KEY}\r\n".encode()
HOST = b"Host: gateway\r\n"
FOREIGN = b"X-Secret: Bearer sk-canary-0123456789\r\nCookie: session=canary\r\n"
CHAT = b"/v1/chat/completions"
BODY = chat(user="canary")
HIDDEN_BODY = chat(user="canary", hidden=True)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
LAST_CHUNK = b"0\r\n\r\n"
UPSTREAM_BODY = BODY.replace(b'"assistant"', b'"fake-model"')
HIDDEN_UPSTREAM = HIDDEN_BODY.replace(b'"assistant"', b'"fake-model"')


_NEVER_UPSTREAM = frozenset((b"transfer-encoding", b"te", b"trailer", b"upgrade", b"expect", b"cookie"))


def length_of(body: bytes) -> bytes:
    return b"Content-Length: %d\r\n" % len(body)


def request(
    *fields: bytes,
    line: bytes = b"POST " + CHAT + b" HTTP/1.1\r\n",
    host: bytes = HOST,
    auth: bytes = AUTH,
    body: bytes | None = BODY,
) -> bytes:
    """A request that would be served as it is. `fields` are further header lines; `body` `None` leaves out
    the body and its length."""
    framing = b"" if body is None else length_of(body)
    return b"".join((line, host, auth, FOREIGN, framing, *fields, b"\r\n", body or b""))


def chunks(body: bytes, size: int = 40) -> bytes:
    """`body` in chunks, ended."""
    cut = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in cut) + LAST_CHUNK


HIDDEN = request(body=HIDDEN_BODY)
"""What is smuggled: a request that would be served if anybody took it for one."""


def answers_in(received: bytes) -> list[Answer]:
    """The responses that a connection carried, to its last byte; interim ones too."""
    found: list[Answer] = []
    while received:
        head, end, received = received.partition(b"\r\n\r\n")
        assert end, f"cut within a head: {head[:200]!r}"
        first, *lines = head.decode("latin-1").split("\r\n")
        version, status, _ = first.split(" ", 2)
        assert version == "HTTP/1.1"
        pairs = [(name.lower(), value) for name, _, value in (line.partition(": ") for line in lines)]
        headers = dict(pairs)
        assert len(headers) == len(pairs), "a header twice"
        body = b""
        if "content-length" in headers:
            length = int(headers["content-length"])
            body, received = received[:length], received[length:]
            assert len(body) == length, "cut within a body"
        elif headers.get("transfer-encoding") == "chunked":
            body, received = _unchunked(received)
        elif int(status) >= 200:
            body, received = received, b""
        found.append(Answer(int(status), headers, body))
    return found


def _unchunked(received: bytes) -> tuple[bytes, bytes]:
    body = b""
    while True:
        size, _, received = received.partition(b"\r\n")
        piece, end, received = (
            received[: int(size, 16)],
            received[int(size, 16) :][:2],
            received[int(size, 16) + 2 :],
        )
        assert end == b"\r\n", "cut within a chunk"
        if not piece:
            return body, received
        body += piece


def check_error(answer: Answer, status: int, code: str | None = None, dialect: str = "openai") -> None:
    """`answer` is this error, in the shape of its dialect, and repeats nothing."""
    assert answer.status == status, (answer.status, answer.body)
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    body = json.loads(answer.body)
    if dialect == "anthropic":
        assert list(body) == ["type", "error", "request_id"]
        assert body["type"] == "error"
        assert sorted(body["error"]) == ["message", "type"]
    else:
        assert list(body) == ["error"]
        assert sorted(body["error"]) == ["code", "message", "param", "type"]
        assert isinstance(body["error"]["code"], str)
        if code is not None:
            assert body["error"]["code"] == code
    assert CANARY not in answer.body
    assert not [value for value in answer.headers.values() if "canary" in value]


def refused(answers: Sequence[Answer], status: int, code: str | None = None, dialect: str = "openai") -> None:
    """There is one answer, this error, and it says that the connection ends."""
    assert len(answers) == 1, answers
    check_error(answers[0], status, code, dialect)
    assert answers[0].headers["connection"] == "close"


class Target:
    """The gateway under attack and the engine behind it. `expected`: see the module."""

    def __init__(self, gateway: Gateway, engine: FakeEngine, authority: Authority | None) -> None:
        self.gateway = gateway
        self.engine = engine
        self.authority = authority
        self.expected: list[bytes] = []

    async def connect(self, *, receive_buffer: int | None = None) -> Client:
        """A client, over TLS if the gateway is. A small `receive_buffer` makes it one that soon takes no
        more."""
        client = await self.connect_plain(receive_buffer=receive_buffer)
        if self.authority is None:
            return client
        secure = SecureClient(client.raw, self.authority.client_context())
        await secure.shake_hands()
        return secure

    async def connect_plain(self, *, receive_buffer: int | None = None) -> Client:
        """A client that does not begin with a handshake."""
        raw = socket.socket()
        raw.setblocking(False)
        if receive_buffer is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", self.gateway.port))
        return Client(raw)

    async def send(self, data: bytes, *, bytewise: bool = False, half_close: bool = False) -> list[Answer]:
        """Sends `data` on a connection of its own while reading to the end of what comes back. A connection
        that is reset, which loses answers, raises."""
        async with await self.connect() as client:
            sending = asyncio.create_task(_send(client, data, bytewise))
            if half_close:
                await sending
                client.half_close()
            try:
                received = await client.rest()
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
        assert CANARY not in received
        return answers_in(received)

    async def settled(self) -> None:
        """Waits until nothing of any request is left: not in flight, not buffered."""
        server = self.gateway.server
        await eventually(lambda: server.inflight == 0 and self.gateway.inflight == 0)
        await eventually(lambda: server._budget.held == 0)

    async def is_well(self) -> None:
        """A client like any other is served, and the engine has got what it should and no more."""
        await self.settled()
        async with await self.connect() as client:
            await client.send(request())
            assert (await client.answer()).status == 200
        await self.settled()
        assert [received.body for received in self.engine.requests] == [*self.expected, UPSTREAM_BODY]
        for received in self.engine.requests:
            names = [name.lower() for name, _ in received.headers]
            assert names.count(b"content-length") == 1
            assert int(received.header("content-length") or "") == len(received.body)
            assert not {b"transfer-encoding", b"te", b"trailer", b"upgrade", b"expect", b"cookie"} & set(
                names
            )
            assert names.count(b"host") == 1
            assert received.header("host") == f"127.0.0.1:{self.engine.port}"
            assert received.header("authorization") == f"Bearer {CREDENTIAL}"
            assert KEY.encode() not in received.head


async def _send(client: Client, data: bytes, bytewise: bool) -> None:
    if not bytewise:
        await client.send(data)
        return
    for at in range(len(data)):
        await client.send(data[at : at + 1])
        await asyncio.sleep(0)


class _Loud(logging.Handler):
    """What libraries and the event loop said."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(self.format(record))


def check_log(text: str) -> None:
    """No line is an error or holds what a client sent."""
    for line in text.splitlines():
        assert json.loads(line).get("level") not in ("error", "critical"), line
    for forbidden in ("Traceback", "canary", KEY, CREDENTIAL):
        assert forbidden not in text


@contextlib.asynccontextmanager
async def under_attack(
    folder: Path,
    *,
    connection: ConnectionLimits | None = None,
    body: BodyLimits | None = None,
    authority: Authority | None = None,
    **changes: Any,
) -> AsyncIterator[Target]:
    """A gateway with these limits, which speaks TLS if there is an `authority`; `changes` are of the snapshot
    or of the rig."""
    edge = EdgeSettings(
        max_inflight=10_000, connection=connection or ConnectionLimits(), body=body or BodyLimits()
    )
    tls = None if authority is None else authority.server_context("127.0.0.1")
    loud = _Loud()
    logging.getLogger().addHandler(loud)
    try:
        async with (
            FakeEngine.start() as engine,
            gateway(folder, engine, edge=edge, tls=tls, **changes) as running,
        ):
            target = Target(running, engine, authority)
            yield target
            await target.is_well()
            check_log(running.log_text())
        assert loud.said == []
    finally:
        logging.getLogger().removeHandler(loud)


# Moments at which a client may leave


async def while_the_engine_thinks(target: Target, client: Client) -> None:
    target.engine.script("/chat/completions", Reply(delay_to_head=30), Reply())
    await client.send(request())
    await target.engine.arrived(1)


async def in_the_stream(target: Target, client: Client) -> None:
    events = tuple(b"data: {}\n\n" for _ in range(1_000))
    target.engine.script("/chat/completions", Reply(events=events, gap=0.05), Reply())
    await client.send(request(body=chat(stream=True)))
    await client.until(b"data: {}")


async def while_it_reads_nothing(target: Target, client: Client) -> None:
    target.engine.script("/chat/completions", Reply(body=b"x" * 20_000_000), Reply())
    await client.send(request())
    await target.engine.arrived(1)
    await asyncio.sleep(0.1)
