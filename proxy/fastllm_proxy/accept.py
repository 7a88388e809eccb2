"""The server of clients' connections: finds the route of a parsed request by its exact path, gives the
request its id, and hands it to the pipeline or to a local route. What goes wrong on the way is answered in
the error shape of the path."""

from __future__ import annotations

import asyncio
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Final, Protocol

import msgspec

from fastllm_proxy import refusals
from fastllm_proxy.access_log import AccessLog, AccessRecord
from fastllm_proxy.body import BodyBudget, BodyLimits, RequestBody
from fastllm_proxy.client_headers import ClientHeaders
from fastllm_proxy.connection import ClientConnection
from fastllm_proxy.downstream import Downstream
from fastllm_proxy.endpoints import ENDPOINTS, spellings
from fastllm_proxy.errors import Refused
from fastllm_proxy.exchange import Endpoint, Exchange
from fastllm_proxy.heads import READ_BUFFER_BYTES, ConnectionLimits, Request
from fastllm_proxy.local import LocalRequest, LocalRoutes
from fastllm_proxy.metrics import Metrics
from fastllm_proxy.observe import Log
from fastllm_proxy.timers import TimerWheel
from fastllm_proxy.view import View
from fastllm_shared.ids import IdSource

Pipeline = Callable[[Exchange, RequestBody], Awaitable[None]]
"""Serves one exchange, and answers through its `downstream` what its stages refuse."""

SETTLING_SECONDS: Final = 1.0
LOOKED_AT: Final = 32
"""Connections that are looked at when one has to go."""
TOLD_AGAIN_SECONDS: Final = 60.0
_SAFE_ID: Final = re.compile(rb"[A-Za-z0-9._~:/+=@-]{1,128}").fullmatch
_ABSOLUTE: Final = re.compile(r"https?://[^/?#]*", re.IGNORECASE).match
_UNLOGGED: Final = frozenset(("/livez", "/readyz", "/health", "/metrics"))


class ViewSource(Protocol):
    """Where the view of the moment is; `None` before the first snapshot."""

    @property
    def current(self) -> View | None: ...


class EdgeSettings(msgspec.Struct, frozen=True):
    """`max_inflight`: requests at once before 503; `max_connections`: clients' connections at once, before
    idle ones are closed; `max_buffered_bytes`: all request bodies held at once."""

    max_inflight: int
    max_connections: int = 1_000_000
    max_buffered_bytes: int = 512 * 1024 * 1024
    connection: ConnectionLimits = ConnectionLimits()
    body: BodyLimits = BodyLimits()


class ProxyServer:
    """What a listening socket makes its connections with. Set `draining` and answers close their
    connections. Built inside the running loop."""

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        views: ViewSource,
        local: LocalRoutes,
        timers: TimerWheel,
        settings: EdgeSettings,
        metrics: Metrics,
        access_log: AccessLog,
        log: Log,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._connections: OrderedDict[ClientConnection, None] = OrderedDict()
        self._told_at = -TOLD_AGAIN_SECONDS
        self._buffer = bytearray(READ_BUFFER_BYTES)
        self._buffer_view = memoryview(self._buffer)
        self._pipeline = pipeline
        self._views = views
        self._local = local
        self.timers = timers
        self._settings = settings
        self._metrics = metrics
        self._access_log = access_log
        self._log = log
        self._budget = BodyBudget(settings.max_buffered_bytes)
        self._endpoints = {path: endpoint for endpoint in ENDPOINTS for path in spellings(endpoint.path)}
        self._ids = IdSource()
        self._emptied: asyncio.Future[None] | None = None
        self.inflight = 0
        self.draining = False

    def __call__(self) -> ClientConnection:
        return ClientConnection(
            self,
            loop=self._loop,
            limits=self._settings.connection,
            buffer=self._buffer,
            view=self._buffer_view,
        )

    @property
    def connections(self) -> list[ClientConnection]:
        """Those that are open."""
        return list(self._connections)

    def connected(self, connection: ClientConnection) -> None:
        self._connections[connection] = None
        if len(self._connections) > self._settings.max_connections:
            self._make_room(connection)

    def disconnected(self, connection: ClientConnection) -> None:
        self._connections.pop(connection, None)

    async def serve(self, connection: ClientConnection, request: Request) -> bool:
        """Serves one request to its end. Returns whether the connection may carry another."""
        target = request.target
        if target[:1] != "/":
            target = _origin_form(target)
        path, mark, query = target.partition("?")
        if "#" in query:  # a fragment is the client's own affair
            query = query.partition("#")[0]
        endpoint = self._endpoints.get(path)
        body = RequestBody(connection, request, self._settings.body, self._budget, self.timers)
        downstream = Downstream(connection, body, self._request_id(request), request)
        arrival = _Arrival(time.monotonic(), time.time())
        self.inflight += 1
        try:
            if endpoint is not None and request.method == "POST":
                exchange = Exchange(
                    view=self._admit(),
                    endpoint=endpoint,
                    headers=_headers(connection, request),
                    query=mark + query,
                    request_id=downstream.request_id,
                    downstream=downstream,
                    accepted_at=arrival.at,
                    accepted_unix=arrival.unix,
                )
                await self._pipeline(exchange, body)
            else:
                await self._serve_here(arrival, request, path, endpoint, downstream)
            if not downstream.ended:
                raise RuntimeError("an exchange ended without the end of its response")
        except Refused as refused:
            self._reject(arrival, downstream, refused, endpoint)
        except Exception as error:  # noqa: BLE001 - whatever a stage has wrong ends in our shape, logged
            self._fail(arrival, downstream, error, endpoint)
        finally:
            self.inflight -= 1
            body.release()
            if self._emptied is not None and not self.inflight and not self._emptied.done():
                self._emptied.set_result(None)
        return downstream.keep_alive

    def refuse(self, connection: ClientConnection, refused: Refused) -> None:
        """Answers what was no request. Nothing of it is repeated or logged."""
        downstream = Downstream(connection, None, self._ids.token(), None)
        arrival = _Arrival(time.monotonic(), time.time())
        self._reject(arrival, downstream, refused, None)

    async def finish(self, seconds: float) -> int:
        """Closes idle connections, waits at most `seconds` for the busy ones, then cuts what is left and
        waits until it is settled. Returns the number of requests that were cut."""
        self.draining = True
        for connection in self.connections:
            connection.close()
        await self._wait_until_empty(seconds)
        cut = self.inflight
        for connection in self.connections:
            if connection.transport is not None:
                connection.transport.abort()
        await self._wait_until_empty(SETTLING_SECONDS)
        return cut

    def _make_room(self, newest: ClientConnection) -> None:
        """Closes a connection, so that whoever only connects takes no file that a request needs. Of those
        that were looked at longest ago: one that never asked an endpoint, else one that is idle, else the
        newest."""
        chosen = newest
        for connection in list(islice(self._connections, LOOKED_AT)):
            if connection is newest:
                break
            stranger = connection.known_headers is None
            if connection.idle and not connection.writing_paused and (stranger or chosen is newest):
                chosen = connection
                if stranger:
                    break
            self._connections.move_to_end(connection)
        del self._connections[chosen]
        if chosen.transport is not None:
            chosen.transport.abort()  # over TLS a close would wait for the client, which need not answer
        if self._loop.time() >= self._told_at + TOLD_AGAIN_SECONDS:
            self._told_at = self._loop.time()
            self._log.warning("too many client connections", most=self._settings.max_connections)

    async def _wait_until_empty(self, seconds: float) -> None:
        if self.inflight:
            self._emptied = self._loop.create_future()
            await asyncio.wait([self._emptied], timeout=seconds)

    def _request_id(self, request: Request) -> str:
        given = request.request_id
        return given.decode() if given is not None and _SAFE_ID(given) else self._ids.token()

    def _admit(self) -> View:
        view = self._views.current
        if view is None:
            raise refusals.not_ready()
        if self.inflight > self._settings.max_inflight:
            raise refusals.overloaded("this replica is serving as many requests as it may; try again")
        return view

    async def _serve_here(
        self,
        arrival: _Arrival,
        request: Request,
        path: str,
        endpoint: Endpoint | None,
        downstream: Downstream,
    ) -> None:
        handler = self._local.find(path)
        if endpoint is not None:
            raise refusals.method_not_allowed(request.method, path, "POST")
        if handler is None:
            raise refusals.unknown_url(request.method, path)
        if request.method not in ("GET", "HEAD"):
            raise refusals.method_not_allowed(request.method, path, "GET, HEAD")
        asked = LocalRequest(path, ClientHeaders(request.headers), self._views.current, arrival.unix)
        downstream.send_whole(*await handler(asked))
        if path not in _UNLOGGED:
            self._record(arrival, downstream, "/models", None)

    def _reject(
        self, arrival: _Arrival, downstream: Downstream, refused: Refused, endpoint: Endpoint | None
    ) -> None:
        if downstream.started:
            downstream.cut()
            return
        refusals.answer(downstream, refused, "openai" if endpoint is None else endpoint.dialect)
        self._metrics.rejected(refused.code or str(refused.status), attributed=False)
        self._record(arrival, downstream, "other" if endpoint is None else endpoint.label, refused.code)

    def _fail(
        self, arrival: _Arrival, downstream: Downstream, error: Exception, endpoint: Endpoint | None
    ) -> None:
        if isinstance(error, ConnectionError) and not downstream.connected:
            return  # a stage wrote to a client that has just gone; its cancellation is on the way
        self._log.error("request failed", request_id=downstream.request_id, exc_info=error)
        if endpoint is None or downstream.started:
            self._reject(arrival, downstream, refusals.internal_error(), endpoint)
        else:  # the pipeline has settled it
            refusals.answer(downstream, refusals.internal_error(), endpoint.dialect)

    def _record(self, arrival: _Arrival, downstream: Downstream, endpoint: str, code: str | None) -> None:
        self._access_log.write(
            AccessRecord(
                at=arrival.unix,
                id=downstream.request_id,
                endpoint=endpoint,
                status=downstream.status,
                duration_ms=(time.monotonic() - arrival.at) * 1000,
                code=code,
            )
        )


class _Arrival(msgspec.Struct, frozen=True, gc=False):
    """When a request came. `at` is `time.monotonic()`."""

    at: float
    unix: float


def _headers(connection: ClientConnection, request: Request) -> ClientHeaders:
    known = connection.known_headers
    if known is None or (known.raw is not request.headers and known.raw != request.headers):
        known = connection.known_headers = ClientHeaders(request.headers)
    return known


def _origin_form(target: str) -> str:
    """The path and query of a target that names a host as well, as requests to proxies do."""
    found = _ABSOLUTE(target)
    if found is None:
        return target
    rest = target[found.end() :]
    return rest if rest[:1] == "/" else "/" + rest
