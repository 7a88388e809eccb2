"""What would happen to a request: read from the database as it is now, worked out by `routing_preview`."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Annotated, Final, Literal, NoReturn
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, UnsetType
from sqlalchemy.ext.asyncio import AsyncSession

from fastllm_control.errors import Conflict, Invalid
from fastllm_control.forms import Reference
from fastllm_control.naming import missing
from fastllm_control.provider_secrets import Open
from fastllm_control.repositories import content, frontend_models, principals
from fastllm_control.routing_preview import Considered, Preview, preview
from fastllm_control.snapshot import build
from fastllm_control.snapshot_rows import PrincipalRow, Rows
from fastllm_shared.conditions import Facts
from fastllm_shared.estimates import conversation_key
from fastllm_shared.given import Given, given
from fastllm_shared.members import scan
from fastllm_shared.snapshot import PrincipalEntry, PrincipalKind
from fastllm_shared.targets import Dialect

Endpoint = Literal[
    "/chat/completions",
    "/completions",
    "/responses",
    "/embeddings",
    "/rerank",
    "/score",
    "/moderations",
    "/images/generations",
    "/images/edits",
    "/audio/speech",
    "/audio/transcriptions",
    "/audio/translations",
    "/messages",
    "/messages/count_tokens",
]
GENERATES: Final = frozenset({"/chat/completions", "/completions", "/responses", "/messages"})
"""The endpoints that are answered in tokens."""

_EARLIEST, _LATEST = (datetime.datetime(year, 1, 1, tzinfo=datetime.UTC) for year in (1971, 9000))

_Tokens = Annotated[int, Meta(ge=0, le=2**53 - 1)]
_Figure = Annotated[float, Meta(ge=0, le=1_000_000)]
_HeaderName = Annotated[str, Meta(max_length=100, pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$(?!\n)")]
_HeaderValue = Annotated[str, Meta(max_length=8192, pattern=r"^[\x20-\x7e]*$(?!\n)")]


class Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A request that is only spoken of. `model` is a frontend model and `principal` who asks, both by id or
    name; absent: the model that `body` names, and whoever makes this call.

    `body` is a whole request as a client would send it: `stream`, the token figures and the beginning of the
    conversation are taken from it where they are not given. `roles` stand in for those that the principal
    holds, `at` for now.
    """

    model: Reference | None = None
    principal: Reference | None = None
    roles: Annotated[tuple[Reference, ...], Meta(max_length=1000)] | None = None
    endpoint: Endpoint = "/chat/completions"
    stream: bool | None = None
    prompt_tokens: _Tokens | None = None
    max_tokens: _Tokens | None = None
    headers: Annotated[dict[_HeaderName, _HeaderValue], Meta(max_length=100)] = {}
    at: Annotated[datetime.datetime, Meta(tz=True)] | None = None
    budget_used_percent: _Figure | None = None
    inflight_per_backend: _Figure | None = None
    body: msgspec.Raw | UnsetType = UNSET


class Read(msgspec.Struct, frozen=True):
    """What a body says."""

    model: str | None = None
    stream: bool = False


async def answer(
    session: AsyncSession, question: Question, caller: UUID | None, now: datetime.datetime, open_secret: Open
) -> Preview:
    """What a proxy would do. Raises `Invalid` naming the field of what there is not, or that is no request,
    and `Conflict` for a model that proxies are not served."""
    read = read_body(question)
    model = await _model(session, question, read)
    rows, principal = await _with_principal(session, await content.read_routes(session), question, caller)
    return work_out(rows, model, principal, question, read, now, open_secret)


def work_out(
    rows: Rows,
    model: str,
    principal_id: UUID,
    question: Question,
    read: Read,
    now: datetime.datetime,
    open_secret: Open,
) -> Preview:
    """The same of rows that have been read; `principal_id` is one of theirs, `model` a name. Pure."""
    built = build(rows, open_secret)
    for dropped in built.dropped:
        if dropped.kind == "frontend_model" and dropped.name == model:
            raise Conflict("model_not_served", f"proxies are not served {model!r}: {dropped.reason}", "model")
    principal = next(entry for entry in built.snapshot.principals if entry.id == str(principal_id))
    if question.roles is not None:
        principal = msgspec.structs.replace(principal, roles=question.roles)
    asked = _asked(question, principal)
    facts = _facts(question, principal, read, asked, now)
    return preview(
        rows, built, model, principal, _considered(question, facts, asked), facts=facts, asked=asked
    )


def read_body(question: Question) -> Read:
    """What the body says, if there is one. Raises `Invalid` for one that proxies would refuse."""
    if isinstance(question.body, UnsetType):
        return Read()
    raw = bytes(question.body)
    try:
        spans = scan(raw)
    except RecursionError:
        _refuse_body("it is nested too deeply")
    except ValueError:
        _refuse_body("it is not a JSON object")
    found: dict[str, bytes] = {}
    for name, start, end in spans:
        if name in found and name in ("model", "stream"):
            _refuse_body(f"`{name}` is given more than once, which proxies refuse")
        found[name] = raw[start:end]
    return Read(_text(found.get("model")), found.get("stream") == b"true")


def _text(raw: bytes | None) -> str | None:
    try:
        return None if raw is None else msgspec.json.decode(raw, type=str)
    except msgspec.MsgspecError:
        _refuse_body("`model` is not a string")


async def _model(session: AsyncSession, question: Question, read: Read) -> str:
    reference, field = question.model, "model"
    if reference is None:
        reference, field = read.model, "body.model"
    if reference is None:
        raise Invalid("model_missing", "name the frontend model that is asked for", "model")
    row = await frontend_models.find(session, reference)
    # Clients have no ids: what a body names is a name.
    if row is None or (field == "body.model" and row.name != reference):
        absent = missing("frontend model", reference)
        raise Invalid(absent.code, absent.message, field)
    return row.name


async def _with_principal(
    session: AsyncSession, rows: Rows, question: Question, caller: UUID | None
) -> tuple[Rows, UUID]:
    reference = question.principal or (None if caller is None else str(caller))
    if reference is None:
        raise Invalid("principal_missing", "name the principal that asks", "principal")
    row = await principals.find(session, reference)
    if row is None:
        absent = missing("principal", reference)
        raise Invalid(absent.code, absent.message, "principal")
    held = await principals.permissions(session, row.id)
    resources = sorted({one.resource for one in held if one.verb == "model:invoke"})
    kind = msgspec.convert(row.kind, PrincipalKind)
    whole = msgspec.structs.replace(
        rows,
        principals=[PrincipalRow(row.id, row.name, kind, None, None)],
        roles={row.id: await principals.role_names(session, row.id)},
        resources={row.id: resources},
    )
    return whole, row.id


def _asked(question: Question, principal: PrincipalEntry) -> Given:
    dialect: Dialect = "anthropic" if question.endpoint.startswith("/messages") else "openai"
    generates = question.endpoint in GENERATES
    if isinstance(question.body, UnsetType):
        # How the conversation begins is not known: one that begins with nothing stands in for it.
        found = Given(conversation_key(principal.id, b""), dialect=dialect, generates=generates)
    else:
        found = given(principal.id, bytes(question.body), dialect=dialect, generates=generates)
    if question.prompt_tokens is not None:
        found = msgspec.structs.replace(found, prompt_tokens=question.prompt_tokens)
    if question.max_tokens is not None:
        found = msgspec.structs.replace(found, max_tokens=question.max_tokens)
    return found


def _facts(
    question: Question, principal: PrincipalEntry, read: Read, asked: Given, now: datetime.datetime
) -> Facts:
    at = question.at or now
    if not _EARLIEST <= at <= _LATEST:
        raise Invalid("invalid_value", "no instant between the years 1971 and 9000", "at")
    unknown = question.prompt_tokens is None and isinstance(question.body, UnsetType)
    return Facts(
        principal=principal.name,
        roles=principal.roles,
        stream=read.stream if question.stream is None else question.stream,
        now_unix=at.timestamp(),
        headers=_lowered(question.headers),
        prompt_tokens=None if unknown else asked.prompt_tokens,
        max_tokens=asked.max_tokens,
        budget_used_percent=question.budget_used_percent,
        inflight_per_backend=question.inflight_per_backend,
    )


def _lowered(headers: Mapping[str, str]) -> dict[str, str]:
    lowered = {name.lower(): value for name, value in headers.items()}
    if len(lowered) < len(headers):
        raise Invalid("invalid_value", "a header is named twice: case does not count", "headers")
    return lowered


def _considered(question: Question, facts: Facts, asked: Given) -> Considered:
    return Considered(
        principal=facts.principal,
        roles=list(facts.roles),
        endpoint=question.endpoint,
        dialect=asked.dialect,
        stream=facts.stream,
        prompt_tokens=facts.prompt_tokens,
        max_tokens=facts.max_tokens,
        at=datetime.datetime.fromtimestamp(facts.now_unix, datetime.UTC),
        budget_used_percent=facts.budget_used_percent,
        inflight_per_backend=facts.inflight_per_backend,
        conversation_known=not isinstance(question.body, UnsetType),
    )


def _refuse_body(why: str) -> NoReturn:
    raise Invalid("invalid_request", f"this is no request that a proxy would take: {why}", "body")
