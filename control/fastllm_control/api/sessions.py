"""`/login`, `/logout` and `/admin/sessions`."""

from __future__ import annotations

import datetime
from typing import Annotated
from uuid import UUID

import msgspec

from fastllm_control.access import Actor, Permission
from fastllm_control.errors import TooMany, Unauthenticated
from fastllm_control.facts import Facts
from fastllm_control.naming import required_id
from fastllm_control.operations import Call, Operation
from fastllm_control.paging import Page, PageQuery, Wanted, page_of
from fastllm_control.repositories import sessions as repository
from fastllm_control.security import SESSION_COOKIE
from fastllm_control.services import sessions as service


class LoginRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    password: Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]

    def __repr__(self) -> str:
        return f"LoginRequest(name={self.name!r})"


class LoggedIn(msgspec.Struct, frozen=True):
    principal_id: UUID
    name: str
    expires_at: datetime.datetime


class LoggedOut(msgspec.Struct, frozen=True):
    logged_out: bool = True


class SessionRow(msgspec.Struct, frozen=True):
    """`current` marks the session that asks."""

    id: UUID
    principal_id: UUID
    principal: str
    address: str
    created_at: datetime.datetime
    expires_at: datetime.datetime
    current: bool


class Myself(msgspec.Struct, frozen=True):
    """Who is asking, and what that principal may do."""

    principal_id: UUID | None
    name: str
    via: str
    permissions: list[Permission]


class SessionRevoked(msgspec.Struct, frozen=True):
    revoked: bool = True


async def log_in(call: Call) -> LoggedIn:
    body: LoginRequest = call.body
    services = call.services
    lifetime = datetime.timedelta(seconds=services.settings.session_seconds)
    door = service.Door(services.database, services.passwords, services.throttle, lifetime)
    try:
        login = await service.log_in(door, call.actor, body.name, body.password, services.clock())
    except (TooMany, Unauthenticated) as refused:
        services.metrics.logins.labels(refused.code).inc()
        raise
    services.metrics.logins.labels("ok").inc()
    call.response_headers["set-cookie"] = _cookie(call, login.token, round(lifetime.total_seconds()))
    return LoggedIn(login.principal_id, login.name, login.expires_at)


async def log_out(call: Call) -> LoggedOut:
    token = call.request.cookies.get(SESSION_COOKIE)
    if token:
        await service.log_out(call.tx, token)
    call.response_headers["set-cookie"] = _cookie(call, "", 0)
    return LoggedOut()


class SessionQuery(PageQuery, frozen=True, forbid_unknown_fields=True):
    """`principal` is an id or a name."""

    principal: Wanted | None = None


async def index(call: Call) -> Page[SessionRow]:
    query: SessionQuery = call.query
    now = call.services.clock()
    async with call.services.database.read() as session:
        found = await repository.page(session, query.limit + 1, query.after_id(), now, query.principal)
    rows = [
        SessionRow(
            id=row.id,
            principal_id=row.principal_id,
            principal=principal,
            address=row.address,
            created_at=row.created_at,
            expires_at=row.expires_at,
            current=row.id == call.actor.session_id,
        )
        for row, principal in found
    ]
    return page_of(rows, query.limit, lambda row: row.id)


async def current(call: Call) -> Myself:
    actor: Actor = call.actor
    permissions = sorted(actor.permissions, key=lambda held: (held.verb, held.resource))
    return Myself(actor.principal_id, actor.name, actor.via, permissions)


async def revoke(call: Call) -> SessionRevoked:
    await service.revoke(call.tx, required_id(call.path["id"], "session"))
    return SessionRevoked()


def _cookie(call: Call, token: str, seconds: int) -> str:
    facts: Facts = call.request.state.facts
    secure = "; Secure" if facts.secure else ""
    return f"{SESSION_COOKIE}={token}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}"


ROUTES = (
    Operation(
        method="POST",
        path="/login",
        requires="public",
        summary="Log in with name and password; answers with the session cookie",
        handler=log_in,
        body=LoginRequest,
        result=LoggedIn,
        errors=(401, 429),
        transaction=False,
        response_headers={"Set-Cookie": "The session"},
    ),
    Operation(
        method="POST",
        path="/logout",
        requires="public",
        summary="End the session of the cookie",
        handler=log_out,
        result=LoggedOut,
        response_headers={"Set-Cookie": "Takes the session out of the browser"},
    ),
    Operation(
        method="GET",
        path="/admin/sessions",
        requires="config:read",
        summary="List the sessions that are valid",
        handler=index,
        query=SessionQuery,
        result=Page[SessionRow],
    ),
    Operation(
        method="GET",
        path="/admin/sessions/current",
        requires="session",
        summary="Show who is asking, with all permissions",
        handler=current,
        result=Myself,
    ),
    Operation(
        method="DELETE",
        path="/admin/sessions/{id}",
        requires="access:write",
        summary="End somebody's session",
        handler=revoke,
        result=SessionRevoked,
        errors=(404,),
    ),
)
