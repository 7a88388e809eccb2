"""`GET /admin/export` and `POST /admin/apply`: the configuration as a file."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from starlette.responses import Response

from fastllm_control.declared.applying import Means, perform
from fastllm_control.declared.document import Document
from fastllm_control.declared.export import export
from fastllm_control.declared.plan import Plan, Step
from fastllm_control.declared.problems import Lines
from fastllm_control.declared.references import GivenSecrets
from fastllm_control.declared.text import MAX_BYTES, Read, plain, read, write
from fastllm_control.errors import ApiError, Invalid
from fastllm_control.operations import Call, Operation

_Text = Annotated[str, Meta(max_length=MAX_BYTES)]
_Credentials = Annotated[dict[str, Annotated[str, Meta(max_length=8192)]], Meta(max_length=10_000)]


class ExportQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`format` is `yaml`, or what `Accept` asks for."""

    format: Literal["yaml", "json"] | None = None


class Apply(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A configuration: as JSON (`document`), or as the text of a YAML file. `credentials` are what its
    references stand for, by the name of the variable or file that they name."""

    document: Document | None = None
    text: _Text | None = None
    credentials: _Credentials = {}
    dry_run: bool = False
    prune: bool = False

    def __repr__(self) -> str:
        return "Apply()"  # without what is secret of it


class Applied(msgspec.Struct, frozen=True):
    """What was done, or would be. `version` is the snapshot that came of it: `null` when proxies see no
    difference, and in a dry run."""

    dry_run: bool
    steps: tuple[Step, ...]
    warnings: tuple[str, ...]
    version: int | None
    printed: str


async def export_configuration(call: Call) -> Response:
    query: ExportQuery = call.query
    async with call.services.database.read() as session:
        document = await export(session, call.services.secrets)
    wanted = query.format or ("json" if "json" in call.request.headers.get("accept", "") else "yaml")
    if wanted == "json":
        body = msgspec.json.encode(plain(document))
        return Response(body, headers={"cache-control": "no-store"}, media_type="application/json")
    # Large configurations take seconds to be written, and others wait for answers meanwhile.
    text = await asyncio.to_thread(write, document)
    return Response(text, headers={"cache-control": "no-store"}, media_type="application/yaml")


async def apply_configuration(call: Call) -> Applied:
    body: Apply = call.body
    given = await _read(body)
    services = call.services
    means = Means(services.secrets, services.dialer, GivenSecrets(body.credentials), services.clock)
    try:
        found = await perform(
            services.database,
            call.actor,
            means,
            given,
            prune=body.prune,
            dry_run=body.dry_run,
            begin=call.begin,
        )
    except ApiError as error:
        if body.document is not None and error.field:
            error.field = f"document.{error.field}"
        raise
    return _applied(found, dry_run=body.dry_run)


async def _read(body: Apply) -> Read:
    if (body.document is None) == (body.text is None):
        raise Invalid("invalid_value", "one of `document` and `text` is needed, and not both", "document")
    if body.document is not None:
        return Read(body.document, Lines())
    return await asyncio.to_thread(read, str(body.text))


def _applied(found: Plan, *, dry_run: bool) -> Applied:
    return Applied(dry_run, found.steps, found.warnings, found.version, found.printed())


ROUTES = (
    Operation(
        method="GET",
        path="/admin/export",
        requires="config:read",
        summary="The whole configuration as a file, without secrets",
        handler=export_configuration,
        query=ExportQuery,
        media=("application/json", "application/yaml"),
        errors=(409,),
    ),
    Operation(
        method="POST",
        path="/admin/apply",
        # Which permissions it takes depends on what the plan touches; that is asked within.
        requires="session",
        summary="Make the configuration so as a file says, or say how; needs all that its plan touches",
        handler=apply_configuration,
        body=Apply,
        result=Applied,
        errors=(409,),
        transaction=False,
        max_body_bytes=2 * MAX_BYTES,
    ),
)
