"""Finding the actor behind a request, and whether it may do what it asks.

Three kinds of caller, three proofs: a Bearer token that is the proxies', a Bearer token that is an API key,
a session cookie. A Bearer token that proves nothing is refused even beside a valid cookie.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Literal

import msgspec
from starlette.requests import Request

from fastllm_control.access import Actor, Requirement
from fastllm_control.errors import Forbidden, Unauthenticated
from fastllm_control.facts import Facts, refuse_other_sites
from fastllm_control.repositories import actors
from fastllm_control.security import SESSION_COOKIE, ProxyTokens, token_digest
from fastllm_control.transaction import Database
from fastllm_shared.keys import digest_of

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_LOG_IN = "log in (POST /login), or send an admin-scoped API key as `Authorization: Bearer …`"


class Caller(msgspec.Struct, frozen=True):
    """An actor, and whether its proof opens the admin API (an `invoke` key's does not)."""

    actor: Actor
    admin: bool


class Callers:
    """`clock` returns the time now, with a time zone."""

    def __init__(
        self, database: Database, tokens: ProxyTokens, clock: Callable[[], datetime.datetime]
    ) -> None:
        self._database = database
        self._tokens = tokens
        self._clock = clock

    async def find(self, request: Request, facts: Facts, requires: Requirement) -> Actor:
        """The actor, allowed to do what `requires` says. Raises `Unauthenticated` or `Forbidden`."""
        caller = await self._identify(request, facts, requires)
        if caller.actor.via in ("session", "anonymous") and request.method not in SAFE_METHODS:
            refuse_other_sites(request.headers, facts)
        _authorise(caller, requires)
        return caller.actor

    async def _identify(self, request: Request, facts: Facts, requires: Requirement) -> Caller:
        bearer = _bearer(request.headers.get("authorization"))
        cookie = request.cookies.get(SESSION_COOKIE)
        if requires == "public" or (bearer is None and not cookie):
            return Caller(_stranger("anonymous", facts), admin=False)
        if bearer is not None:
            return await self._by_bearer(bearer, facts)
        async with self._database.read() as session:
            found = await actors.by_session(session, token_digest(cookie or ""), self._clock())
        if found is None:
            raise Unauthenticated("session_expired", "the session is not valid or has expired: log in again")
        return Caller(_principal("session", found, facts), admin=True)

    async def _by_bearer(self, bearer: str, facts: Facts) -> Caller:
        if bearer in self._tokens:
            return Caller(_stranger("proxy", facts), admin=False)
        async with self._database.read() as session:
            found = await actors.by_key(session, digest_of(bearer), self._clock())
        if found is None:
            raise Unauthenticated(
                "invalid_token", "the bearer token is no key that is valid here (unknown, revoked or expired)"
            )
        return Caller(_principal("key", found, facts), admin=found.scope == "admin")


def _authorise(caller: Caller, requires: Requirement) -> None:
    actor = caller.actor
    if requires == "public":
        return
    if actor.via == "anonymous":
        expected = "the proxies' token is required" if requires == "proxy" else _LOG_IN
        raise Unauthenticated("unauthenticated", expected)
    if requires == "proxy" or actor.via == "proxy":
        if requires != "proxy" or actor.via != "proxy":
            raise Forbidden(
                "forbidden", "the proxies' token opens the proxies' channel, and nothing else does"
            )
        return
    if requires == "any_principal":
        return
    if not caller.admin:
        raise Forbidden("forbidden", "this key's scope is `invoke`: the admin API needs one of scope `admin`")
    if requires != "session" and not actor.may(requires):
        raise Forbidden("forbidden", f"this needs the permission `{requires}`, which no role of yours holds")


def _bearer(header: str | None) -> str | None:
    if header is None:
        return None
    scheme, _, token = header.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthenticated("invalid_token", "the Authorization header is not of the form `Bearer …`")
    return token.strip()


def _stranger(via: Literal["anonymous", "proxy"], facts: Facts) -> Actor:
    return Actor(name=via, via=via, request_id=facts.request_id, address=facts.address)


def _principal(via: Literal["session", "key"], found: actors.Identity, facts: Facts) -> Actor:
    return Actor(
        name=found.name,
        via=via,
        principal_id=found.principal_id,
        permissions=found.permissions,
        session_id=found.proof_id if via == "session" else None,
        request_id=facts.request_id,
        address=facts.address,
    )
