"""Running operations: which one a request means, and the steps that all of them go through.

Paths are matched raw, as they were sent: a name in a path may hold `/`, written so or as `%2F`. Where
several templates fit, the one with the most fixed text wins, so `%2F` keeps such text inside a name.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from fastllm_control import decoding, failures
from fastllm_control.access import Actor
from fastllm_control.errors import ApiError, Invalid, NotFound, TooLarge
from fastllm_control.facts import Facts
from fastllm_control.operations import Call, Operation

if TYPE_CHECKING:
    from fastllm_control.app import Services

_LLM_PATH = re.compile(
    rb"/+(?:v1(?:/.*)?|(?:chat/)?completions|embeddings|messages|responses|models(?:/.*)?|rerank|score)/?"
)
_LONGEST_PATH = 8192
BODY_SECONDS = 60.0


def build_routes(operations: Sequence[Operation], services: Services) -> list[BaseRoute]:
    """The routes of `operations`, for Starlette."""
    return [OperationRoutes(operations, services)]


class _Template:
    """One path template with its operations by method."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.operations: dict[str, tuple[Operation, msgspec.json.Decoder[Any] | None]] = {}
        pieces = re.split(r"\{(\w+)\}", path)
        self._pattern = re.compile(
            "".join(
                f"(?P<{piece}>.+)" if index % 2 else re.escape(piece) for index, piece in enumerate(pieces)
            )
        )
        # Fewest parameters first, then most fixed text.
        self.rank = (len(pieces) // 2, -sum(len(piece) for piece in pieces[::2]))

    @property
    def allowed(self) -> list[str]:
        """The methods that the path takes."""
        return sorted({*self.operations, "HEAD"} if "GET" in self.operations else self.operations)

    def match(self, raw: str) -> dict[str, str] | None:
        found = self._pattern.fullmatch(raw)
        return None if found is None else found.groupdict()


class OperationRoutes(BaseRoute):
    """The last route of the application: whatever it does not know is 404, in the one shape of errors."""

    def __init__(self, operations: Sequence[Operation], services: Services) -> None:
        by_path: dict[str, _Template] = {}
        for operation in operations:
            template = by_path.setdefault(operation.path, _Template(operation.path))
            if operation.method in template.operations:
                raise ValueError(f"two operations for {operation.method} {operation.path}")
            decoder = None if operation.body is None else msgspec.json.Decoder(operation.body)
            template.operations[operation.method] = (operation, decoder)
        self._templates = sorted(by_path.values(), key=lambda template: template.rank)
        self._services = services

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return (Match.FULL if scope["type"] == "http" else Match.NONE), {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        facts: Facts = scope["state"]["facts"]
        request = Request(scope, receive)
        try:
            response = await self._respond(request, facts)
        except ClientDisconnect:
            return
        except ApiError as refused:
            response = failures.refused(refused, facts.request_id)
        except Exception as error:  # noqa: BLE001 (the boundary: whatever it is must become an answer and a log line)
            response = self._failed(error, facts)
        await response(scope, receive, send)

    async def _respond(self, request: Request, facts: Facts) -> Response:
        template, raw_path = self._find(request.scope)
        request.scope["state"]["route"] = template.path
        method = "GET" if request.method == "HEAD" else request.method
        if method not in template.operations:
            allowed = ", ".join(template.allowed)
            message = f"{request.method} is not for this path; it takes {allowed}"
            response = failures.answer(405, "method_not_allowed", message, facts.request_id)
            response.headers["allow"] = allowed
            return response
        operation, decoder = template.operations[method]
        actor = await self._services.callers.find(request, facts, operation.requires)
        request.scope["state"]["actor"] = actor.name
        path = decoding.decode_path(raw_path)
        query = decoding.decode_query(operation.query, request.scope["query_string"])
        body = await _read_body(request, operation, decoder)
        if method != "GET":
            # The body may have taken a minute, and its sender may have lost in it what it was let in for.
            actor = await self._services.callers.find(request, facts, operation.requires)
        return await self._run(operation, request, actor, (path, query, body))

    async def _run(
        self, operation: Operation, request: Request, actor: Actor, decoded: tuple[dict[str, str], Any, Any]
    ) -> Response:
        path, query, body = decoded
        if operation.method == "GET" or not operation.transaction:
            call = Call(self._services, actor, request, path, query, body, None, operation.requires)
            return _encoded(operation, await operation.handler(call), call)
        async with self._services.database.begin(actor) as tx:
            call = Call(self._services, actor, request, path, query, body, tx, operation.requires)
            result = await operation.handler(call)
        call.report_version(tx)
        return _encoded(operation, result, call)

    def _find(self, scope: Scope) -> tuple[_Template, dict[str, str]]:
        raw: bytes = scope.get("raw_path") or scope["path"].encode()
        raw = raw.partition(b"?")[0]
        if len(raw) <= _LONGEST_PATH:
            text = raw.decode("latin-1")
            for template in self._templates:
                found = template.match(text)
                if found is not None:
                    return template, found
        if _LLM_PATH.fullmatch(raw):
            raise NotFound(
                "wrong_port",
                "this is the control plane: LLM clients belong on the proxy's port (4000 by default)",
            )
        raise NotFound("not_found", "there is nothing at this path")

    def _failed(self, error: Exception, facts: Facts) -> Response:
        refusal = failures.refusal_of(error)
        if refusal is None:
            self._services.log.error("request failed", request_id=facts.request_id, exc_info=error)
            message = "something went wrong here; the cause is in the log line with this request id"
            return failures.answer(500, "internal_error", message, facts.request_id)
        if refusal.status >= 500:
            cause = f"{type(error).__name__}: {error}".splitlines()[0]
            self._services.log.warning("database away", request_id=facts.request_id, cause=cause)
        return failures.refused(refusal, facts.request_id)


async def _read_body(
    request: Request, operation: Operation, decoder: msgspec.json.Decoder[Any] | None
) -> Any:
    if request.method in ("GET", "HEAD"):
        return None
    if decoder is not None:
        headers = request.headers
        decoding.refuse_other_formats(headers.get("content-type"), headers.get("content-encoding"))
    limit = operation.max_body_bytes
    too_large = TooLarge("body_too_large", f"the body is larger than the {limit} bytes that are taken here")
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for piece in request.stream():
                body += piece
                if len(body) > limit:
                    raise too_large
    except TimeoutError:
        raise Invalid("body_incomplete", f"the body did not arrive within {BODY_SECONDS:.0f} s") from None
    if decoder is not None:
        return decoding.decode_body(decoder, bytes(body), unique=operation.requires != "proxy")
    if bytes(body).strip() not in (b"", b"{}"):
        raise Invalid("unexpected_body", "this takes no body")
    return None


def _encoded(operation: Operation, result: msgspec.Struct | Response | None, call: Call) -> Response:
    if isinstance(result, Response):
        response = result
    else:
        body = b"{}" if result is None else msgspec.json.encode(result)
        response = Response(body, operation.status, {"cache-control": "no-store"}, "application/json")
    for name, value in call.response_headers.items():
        response.headers[name] = value
    return response
