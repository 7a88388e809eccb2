"""Routes that a replica answers itself: the models a key can name, health, metrics.

`ReplicaStatus` is what the rest of the process must provide for them.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import Final, Literal, Protocol
from urllib.parse import unquote

import msgspec

from fastllm_proxy import refusals
from fastllm_proxy.authenticate import authenticate
from fastllm_proxy.authorise import model_not_found, nameable
from fastllm_proxy.client_headers import ClientHeaders
from fastllm_proxy.refusals import JSON_HEADERS
from fastllm_proxy.view import FrontendModel, View
from fastllm_shared.health import EjectionPath, EjectionReason, LoopView
from fastllm_shared.keys import digest_of

METRICS_HEADERS: Final = b"content-type: text/plain; version=0.0.4; charset=utf-8\r\n"

Reply = tuple[int, bytes, bytes]
"""Status, header lines, body."""


class LocalRequest(msgspec.Struct, frozen=True):
    """`path` is as sent, without the query."""

    path: str
    headers: ClientHeaders
    view: View | None
    now_unix: float


class EjectionDetail(msgspec.Struct, frozen=True, omit_defaults=True):
    """`until` is Unix seconds, `None` until a probe passes; `reason` only for the proxy token."""

    path: EjectionPath
    until: float | None
    reason: EjectionReason | msgspec.UnsetType = msgspec.UNSET


class BackendHealth(msgspec.Struct, frozen=True, omit_defaults=True):
    """`provider` only for the proxy token."""

    backend_id: str
    model: str
    healthy: bool
    inflight: int
    ejected: EjectionDetail | None
    provider: str | msgspec.UnsetType = msgspec.UNSET


class Health(msgspec.Struct, frozen=True):
    """`GET /health`. `snapshot_age_seconds` is `None` before the first snapshot."""

    status: Literal["ok", "degraded", "not_ready"]
    snapshot_version: int
    snapshot_age_seconds: float | None
    keys: int
    backends: tuple[BackendHealth, ...]
    loops: dict[str, LoopView]


class ReplicaStatus(Protocol):
    """What this replica knows about itself."""

    @property
    def ready(self) -> bool:
        """Whether traffic should be sent here: a snapshot is loaded, and the replica is not draining."""
        ...

    def health(self, *, detail: bool) -> Health:
        """`detail` adds provider names and reasons."""
        ...


class Model(msgspec.Struct, frozen=True):
    """One entry of OpenAI's list; the two last fields are where clients look for the context length, in
    tokens."""

    id: str
    created: int
    max_model_len: int | None
    context_length: int | None
    object: Literal["model"] = "model"
    owned_by: str = "fastllm"


class ModelList(msgspec.Struct, frozen=True):
    data: list[Model]
    object: Literal["list"] = "list"


LocalHandler = Callable[[LocalRequest], Awaitable[Reply]]

_MODEL_PREFIXES: Final = ("/v1/models/", "/models/")
_LIVE: Final = (200, JSON_HEADERS, b'{"status":"ok"}')
_UNREADY: Final = (503, JSON_HEADERS + b"retry-after: 2\r\n", b'{"status":"not_ready"}')
_encode: Final = msgspec.json.Encoder().encode


class LocalRoutes:
    """`tokens` are the proxy tokens that open the details of `/health`."""

    def __init__(
        self, status: ReplicaStatus, render_metrics: Callable[[], Awaitable[bytes]], tokens: tuple[str, ...]
    ) -> None:
        self._status = status
        self._render_metrics = render_metrics
        self._tokens = tuple(digest_of(token) for token in tokens)
        self._handlers: dict[str, LocalHandler] = {
            "/livez": self._livez,
            "/readyz": self._readyz,
            "/health": self._health,
            "/metrics": self._metrics,
            "/v1/models": self._models,
            "/models": self._models,
        }

    def find(self, path: str) -> LocalHandler | None:
        """The handler for a path; a trailing slash is the same route."""
        found = self._handlers.get(path) or self._handlers.get(path.removesuffix("/"))
        if found is None and path.startswith(_MODEL_PREFIXES):
            return self._model
        return found

    async def _livez(self, _: LocalRequest) -> Reply:
        return _LIVE

    async def _readyz(self, _: LocalRequest) -> Reply:
        return _LIVE if self._status.ready else _UNREADY

    async def _health(self, request: LocalRequest) -> Reply:
        health = self._status.health(detail=self._is_operator(request.headers))
        return 503 if health.status == "not_ready" else 200, JSON_HEADERS, _encode(health)

    async def _metrics(self, _: LocalRequest) -> Reply:
        return 200, METRICS_HEADERS, await self._render_metrics()

    async def _models(self, request: LocalRequest) -> Reply:
        return 200, JSON_HEADERS, _encode(ModelList([_model_of(found) for found in _granted(request)]))

    async def _model(self, request: LocalRequest) -> Reply:
        name = unquote(request.path[request.path.index("/models/") + len("/models/") :])
        for found in _granted(request):
            if found.name == name:
                return 200, JSON_HEADERS, _encode(_model_of(found))
        raise model_not_found()

    def _is_operator(self, headers: ClientHeaders) -> bool:
        return any(hmac.compare_digest(given, own) for given in headers.digests for own in self._tokens)


def _granted(request: LocalRequest) -> list[FrontendModel]:
    if request.view is None:
        raise refusals.not_ready()
    return nameable(request.view, authenticate(request.view, request.headers, request.now_unix))


def _model_of(model: FrontendModel) -> Model:
    length = model.context_length
    return Model(model.name, int(model.entry.created_at), length, length)
