"""What a deployment asks of the process itself: liveness, readiness, metrics."""

from __future__ import annotations

from typing import Literal

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from sqlalchemy import text
from starlette.responses import Response

import fastllm_shared
from fastllm_control.operations import Call, Operation


class Alive(msgspec.Struct, frozen=True):
    status: Literal["ok"]
    version: str


async def healthz(_: Call) -> Alive:
    return Alive("ok", fastllm_shared.__version__)


async def readyz(call: Call) -> Alive:
    """Raises what the database raises: it is a 503 then."""
    async with call.services.database.read() as session:
        await session.execute(text("SELECT 1"))
    return Alive("ok", fastllm_shared.__version__)


async def metrics(call: Call) -> Response:
    return Response(call.services.metrics.text(), media_type=CONTENT_TYPE_LATEST)


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
        summary="Whether the process can serve: the database answers",
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
    ),
)
