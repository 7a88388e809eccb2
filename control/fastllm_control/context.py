"""The outermost layer: gives every request its facts, and counts and logs its end."""

from __future__ import annotations

import time
from collections.abc import Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fastllm_control.facts import Facts, Network, facts_of
from fastllm_control.observe import Log, Metrics

_QUIET = frozenset({"/healthz", "/readyz", "/metrics"})


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

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", facts.request_id.encode())]
            await send(message)

        try:
            await self._app(scope, receive, send_marked)
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
