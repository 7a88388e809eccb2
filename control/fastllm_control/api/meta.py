"""What is asked of the process itself: liveness, readiness, metrics, its API, its settings, its health."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from sqlalchemy import text
from starlette.responses import Response

import fastllm_shared
from fastllm_control.errors import Unavailable
from fastllm_control.operations import Call, Operation
from fastllm_control.reference import Made
from fastllm_control.reference_assets import CONTENT_SECURITY_POLICY
from fastllm_shared.settings import effective


class Alive(msgspec.Struct, frozen=True):
    status: Literal["ok"]
    version: str


class Settings(msgspec.Struct, frozen=True):
    """The effective settings by name; secrets are masked."""

    version: str
    settings: dict[str, Any]


async def healthz(_: Call) -> Alive:
    return Alive("ok", fastllm_shared.__version__)


async def readyz(call: Call) -> Alive:
    """Raises what the database raises: it is a 503 then, as without a snapshot."""
    async with call.services.database.read() as session:
        await session.execute(text("SELECT 1"))
    if call.services.publisher.current is None:
        raise Unavailable("not_ready", "no snapshot has been built yet")
    return Alive("ok", fastllm_shared.__version__)


async def metrics(call: Call) -> Response:
    return Response(call.services.metrics.text(), media_type=CONTENT_TYPE_LATEST)


async def openapi(call: Call) -> Response:
    return _unless_held(call, call.services.reference.document, "application/json", {})


async def docs(call: Call) -> Response:
    headers = {"content-security-policy": CONTENT_SECURITY_POLICY}
    return _unless_held(call, call.services.reference.page, "text/html", headers)


def _unless_held(call: Call, made: Made, media_type: str, headers: dict[str, str]) -> Response:
    headers = {**headers, "etag": made.etag, "cache-control": "no-cache"}
    if call.request.headers.get("if-none-match") == made.etag:
        return Response(b"", 304, headers)
    return Response(made.body, 200, headers, media_type)


async def config(call: Call) -> Settings:
    return Settings(fastllm_shared.__version__, effective(call.services.settings))


ROUTES = (
    Operation(
        method="GET",
        path="/healthz",
        requires="public",
        summary="Whether the process runs",
        handler=healthz,
        result=Alive,
    ),
    Operation(
        method="GET",
        path="/readyz",
        requires="public",
        summary="Whether the process can serve: the database answers, a snapshot is built",
        handler=readyz,
        result=Alive,
        errors=(503,),
    ),
    Operation(
        method="GET",
        path="/metrics",
        requires="public",
        summary="Prometheus metrics",
        handler=metrics,
        media=("text/plain",),
    ),
    Operation(
        method="GET",
        path="/openapi.json",
        requires="public",
        summary="This API as an OpenAPI 3.1 document",
        handler=openapi,
        request_headers={"If-None-Match": "The `ETag` of a former answer"},
        response_headers={"ETag": "Changes with the document"},
        also={304: "The caller has it"},
    ),
    Operation(
        method="GET",
        path="/docs",
        requires="public",
        summary="This API as a page to read",
        handler=docs,
        media=("text/html",),
        request_headers={"If-None-Match": "The `ETag` of a former answer"},
        response_headers={"ETag": "Changes with the page"},
        also={304: "The caller has it"},
    ),
    Operation(
        method="GET",
        path="/admin/config",
        requires="config:read",
        summary="Effective settings, secrets masked",
        handler=config,
        result=Settings,
    ),
)
