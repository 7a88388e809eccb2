"""A model server that does as it is told, on its own raw HTTP so that it can also lie, stall and die.

    async with FakeEngine.start() as engine:
        engine.script("/chat/completions", Answer(status=503), Answer())     # the last one stays
        …                                                                    # call engine.url
        assert engine.requests[0].header("authorization") == "Bearer sk-engine"

Without a script it answers as an engine would. As a process: `python -m tests.fakes.engine --port 0`, which
prints its URL.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from tests.fakes.answers import WORDS, Answer, Fault, Reply
from tests.fakes.engine_connection import EngineConnection, Received, route_of
from tests.fakes.replies import ROUTES, error_reply, usual_reply, vllm_metrics

__all__ = ["Answer", "EngineConnection", "FakeEngine", "Fault", "Received"]

Accepting = Literal["serve", "reset", "close", "stall", "deaf"]


class FakeEngine:
    """State: `requests` and `connections` in the order of their coming; the scripts that are left per path.

    `accepting` says what happens to new connections (`stall`: never answered, `deaf`: not even read);
    `api_key` what must be sent, if anything; `metrics` overrides the text of `/metrics`, `None` computes one
    in vLLM's names.
    """

    def __init__(
        self,
        *,
        models: tuple[str, ...] = ("fake-model",),
        api_key: str | None = None,
        keep_alive_seconds: float | None = None,
    ) -> None:
        self.models = models
        self.api_key = api_key
        self.keep_alive_seconds = keep_alive_seconds
        self.accepting: Accepting = "serve"
        self.metrics: str | None = None
        self.requests: list[Received] = []
        self.connections: list[EngineConnection] = []
        self.port = 0
        self.secure = False
        self._scripts: dict[str, list[Answer]] = {}
        self._complete: list[Received] = []
        self._arrival = asyncio.Event()

    @classmethod
    @contextlib.asynccontextmanager
    async def start(
        cls,
        *,
        models: tuple[str, ...] = ("fake-model",),
        api_key: str | None = None,
        keep_alive_seconds: float | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        receive_buffer: int | None = None,
    ) -> AsyncIterator[FakeEngine]:
        """An engine that serves until the block ends; `port` 0 takes a free one. Of what it does not read its
        kernel takes no more than about `receive_buffer` bytes."""
        engine = cls(models=models, api_key=api_key, keep_alive_seconds=keep_alive_seconds)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family)
        if receive_buffer is not None:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        server = await asyncio.get_running_loop().create_server(engine._accept, sock=listening, ssl=tls)
        engine.port = server.sockets[0].getsockname()[1]
        engine.secure = tls is not None
        try:
            yield engine
        finally:
            server.close()
            for connection in engine.connections:
                connection.break_off("close")
            await asyncio.gather(*(connection.ended() for connection in engine.connections))

    @property
    def origin(self) -> str:
        return f"{'https' if self.secure else 'http'}://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """The `api_base`."""
        return self.origin + "/v1"

    @property
    def open_connections(self) -> int:
        return sum(connection.closed_at is None for connection in self.connections)

    def script(self, route: str, *answers: Answer) -> None:
        """What the next requests to a route get, one answer each; the last one stays. None: the usual.

        `route` is a path with or without `/v1`.
        """
        self._scripts[route_of(route)] = list(answers)

    def hits(self, route: str) -> int:
        return sum(request.route == route_of(route) for request in self.requests)

    async def arrived(self, count: int, timeout_seconds: float = 5.0) -> Received:
        """Waits until `count` requests have come in all, bodies included; returns the last of them."""
        async with asyncio.timeout(timeout_seconds):
            while len(self._complete) < count:
                self._arrival.clear()
                await self._arrival.wait()
        return self._complete[count - 1]

    # Called by connections.

    def note_arrival(self, request: Received) -> None:
        self._complete.append(request)
        self._arrival.set()

    def answer_to(self, request: Received) -> Answer:
        """Decided upon the head alone, since some answers do not wait for the body."""
        if not self._authorised(request):
            return _refusal(401, "Incorrect API key provided", "invalid_api_key")
        script = self._scripts.get(request.route)
        if script:
            return script.pop(0) if len(script) > 1 else script[0]
        if request.route not in (*ROUTES, "/metrics"):
            return _refusal(404, f"no route for {request.path}", None)
        return Answer()

    def reply_to(self, request: Received, answer: Answer) -> Reply:
        if answer.events is not None:
            return Reply("text/event-stream; charset=utf-8", events=answer.events)
        if answer.body is not None:
            return Reply("application/json", body=answer.body)
        if answer.status >= 400:
            return error_reply(f"scripted {answer.status}", "scripted_error")
        if request.route == "/metrics":
            return Reply("text/plain; version=0.0.4", body=(self.metrics or self._own_metrics()).encode())
        return usual_reply(request.route, request.body, answer, self.models)

    def _authorised(self, request: Received) -> bool:
        if self.api_key is None or request.route in ("/metrics", "/health"):
            return True
        bearer = request.header("authorization") == f"Bearer {self.api_key}"
        return bearer or request.header("x-api-key") == self.api_key

    def _own_metrics(self) -> str:
        answered = sum(request.answered_at is not None for request in self.requests)
        running = sum(not request.settled.is_set() for request in self.requests)
        return vllm_metrics(
            self.models[0] if self.models else "none",
            running=running,
            waiting=0,
            generated=len(WORDS) * answered,
            prompted=7 * answered,
            served=answered,
        )

    def _accept(self) -> EngineConnection:
        return EngineConnection(self, len(self.connections))


def _refusal(status: int, message: str, code: str | None) -> Answer:
    return Answer(status=status, body=error_reply(message, code=code).body)


async def _run(host: str, port: int, models: tuple[str, ...], scripts: dict[str, list[Answer]]) -> None:
    async with FakeEngine.start(host=host, port=port, models=models) as engine:
        for route, script in scripts.items():
            engine.script(route, *script)
        print(engine.url, flush=True)  # noqa: T201 - how the starter learns the port
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        await stop.wait()


def decode_scripts(text: bytes) -> dict[str, list[Answer]]:
    """Scripts from JSON, `{route: [answer, …]}`; byte strings in it are base64."""
    return msgspec.json.decode(text, type=dict[str, list[Answer]])


def main(arguments: Sequence[str]) -> None:
    """Serves until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="tests.fakes.engine")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--model", action="append", dest="models", help="may be given more than once")
    parser.add_argument("--answers", type=Path, help="JSON, as `decode_scripts` reads it")
    given = parser.parse_args(arguments)
    scripts = {} if given.answers is None else decode_scripts(given.answers.read_bytes())
    asyncio.run(_run(given.host, given.port, tuple(given.models or ("fake-model",)), scripts))


if __name__ == "__main__":
    main(sys.argv[1:])
