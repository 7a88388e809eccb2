"""The outermost layer: gives every request its facts, and counts and logs its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fastllm_control.facts import Facts, Network, facts_of
from fastllm_control.observe import Log, Metrics

DRAIN_SECONDS = 5.0
_QUIET = frozenset({"/healthz", "/readyz", "/metrics"})


class _Body:
    """The request's body on its way in: whatever the application leaves unread is read and dropped.

    Hypercorn's reader waits on a short queue that only the application empties, and so does the end of its
    answer: an answer given before a large body was read would never be finished, and a client that sends
    its whole body before it looks for an answer would wait for ever.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._ended = False

    async def receive(self) -> Message:
        message = await self._receive()
        self._ended = message["type"] == "http.disconnect" or not message.get("more_body", False)
        return message

    async def finish(self, send: Send, last: Message) -> None:
        """Send the last piece of the answer, but its end only once the body has arrived, or `DRAIN_SECONDS`
        have passed: then the connection closes on what is still being sent."""
        if self._ended:
            await send(last)
            return
        await send({**last, "more_body": True})
        dropping = asyncio.create_task(self._drop())
        await asyncio.wait({dropping}, timeout=DRAIN_SECONDS)
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        dropping.cancel()

    async def _drop(self) -> None:
        while not self._ended:
            await self.receive()


class RequestContext:
    """Puts `facts` into the scope's state, the request id on the answer, a line into the access log."""

    def __init__(self, app: ASGIApp, trusted: Sequence[Network], metrics: Metrics, log: Log) -> None:
        self._app = app
        self._trusted = trusted
        self._metrics = metrics
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        facts = facts_of(scope, self._trusted)
        state = scope.setdefault("state", {})
        state["facts"] = facts
        status = 499
        body = _Body(receive)

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", facts.request_id.encode())]
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                await body.finish(send, message)
            else:
                await send(message)

        try:
            await self._app(scope, body.receive, send_marked)
        finally:
            self._record(scope, facts, status, time.perf_counter() - started)

    def _record(self, scope: Scope, facts: Facts, status: int, seconds: float) -> None:
        route = scope["state"].get("route", "(none)")
        self._metrics.observe(scope["method"], route, status, seconds)
        line = self._log.debug if route in _QUIET else self._log.info
        line(
            "request",
            method=scope["method"],
            path=scope["path"],
            status=status,
            duration_ms=round(seconds * 1000, 1),
            actor=scope["state"].get("actor"),
            address=facts.address,
            request_id=facts.request_id,
        )
