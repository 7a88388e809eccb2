"""What a write is expected to leave in the audit log, and the stage on which all of them are played.

A scenario prepares what it needs and returns the call to be made. Every operation that is no GET has one, in
one of the modules `writes_*`; `test_audit` plays them and looks at what they leave.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec
from sqlalchemy import text

from fastllm_shared.keys import digest_of
from tests.fakes.control_plane import PASSWORD, PROXY_TOKEN, Answer, ControlPlane
from tests.fakes.engine import FakeEngine


class Write(msgspec.Struct, frozen=True, kw_only=True):
    """A call that succeeds. `action` and what follows is the event that it leaves; `None`: it leaves none,
    since it changes nothing or is no change by anybody (measurements, findings).

    `fields` are those that changed; `target_id` and `version` are taken from the answer where not given.
    `again`: what the very same call does next: it is refused, changes nothing, or is another change.
    """

    path: str
    body: object = None
    raw: bytes | None = None
    token: str | None = ""
    cookie: str | None = None
    action: str | None = None
    kind: str | None = None
    name: str | None = None
    target_id: str | None = None
    fields: frozenset[str] = frozenset()
    content: bool = True
    again: Literal["refused", "nothing", "another"] = "nothing"
    actor: str = "root"
    via: str = "key"


class Event(msgspec.Struct, frozen=True):
    """An audit event as the API shows it."""

    id: int
    at: str
    actor: str
    actor_id: str | None
    via: str
    action: str
    target_kind: str
    target_id: str | None
    target_name: str | None
    changes: dict[str, dict[str, Any]]
    version: int | None
    request_id: str
    address: str


class Trace(msgspec.Struct, frozen=True):
    """What every write moves forward, and nothing else does."""

    events: int
    newest: int | None
    version: int


class Stage:
    """A control plane and an engine that lists models. `secrets` is everything that no output may show."""

    def __init__(self, plane: ControlPlane, engine: FakeEngine, viewer: str) -> None:
        self.plane = plane
        self.engine_url = engine.origin
        self.viewer = viewer
        self.secrets: set[str] = {PASSWORD, PROXY_TOKEN, "11" * 32}
        self.answers: list[bytes] = []
        self._numbers = itertools.count(1)
        self.secrets.add(urlsplit(plane.services.settings.database_url).password or "")
        assert "" not in self.secrets
        self._remember_proof(plane.admin_key)
        self._remember_proof(viewer)

    @classmethod
    @asynccontextmanager
    async def start(cls, database_url: str) -> AsyncIterator[Stage]:
        async with (
            FakeEngine.start(models=("fake-model", "org/other")) as engine,
            ControlPlane.start(database_url) as plane,
        ):
            await plane.principal("onlooker", "viewer")
            yield cls(plane, engine, await plane.key_of("onlooker"))

    def fresh(self, kind: str) -> str:
        """A name that nothing has yet; with a slash, as names may have."""
        return f"{kind}/{next(self._numbers)}"

    def canary(self) -> str:
        """A secret to plant."""
        made = "canary-" + secrets.token_hex(12)
        self.secrets.add(made)
        return made

    def _remember_proof(self, proof: str) -> None:
        self.secrets |= {proof, digest_of(proof).hex()}

    async def call(self, method: str, path: str, body: object = None, **more: Any) -> Answer:
        """As `ControlPlane.call`, which must succeed."""
        answer = await self.plane.call(method, path, body, **more)
        assert answer.status < 300, (method, path, answer.body)
        self._learn(answer)
        return answer

    async def send(self, method: str, write: Write, headers: Mapping[str, str] | None = None) -> Answer:
        """Make the call, whatever it answers."""
        answer = await self.plane.call(
            method,
            write.path,
            write.body,
            raw=write.raw,
            token=write.token,
            cookie=write.cookie,
            headers=headers,
        )
        self._learn(answer)
        return answer

    def _learn(self, answer: Answer) -> None:
        """Proofs are shown once, to whoever made them: from then on they are secrets."""
        shown = answer.json.get("key") if isinstance(answer.json, dict) else None
        for proof in filter(None, (shown, answer.cookies.get("fastllm_session"))):
            self._remember_proof(proof)
        if shown is None:
            self.answers.append(answer.body)

    async def rows(self, query: str, **values: object) -> list[Any]:
        async with self.plane.services.database.read() as session:
            return list(await session.execute(text(query), values))

    async def execute(self, statement: str, **values: object) -> None:
        async with self.plane.services.database.engine.begin() as connection:
            await connection.execute(text(statement), values)

    async def trace(self) -> Trace:
        ((events, newest, version),) = await self.rows(
            "SELECT (SELECT count(*) FROM audit_events), (SELECT max(id) FROM audit_events), version"
            " FROM config"
        )
        return Trace(events, newest, version)

    async def events_of(self, request_id: str) -> list[Event]:
        answer = await self.plane.call("GET", f"/admin/audit?request_id={request_id}")
        return msgspec.convert(answer.rows, list[Event])

    async def principal(self, kind: str = "service_account", *roles: str) -> tuple[str, str]:
        """(id, name)."""
        name = self.fresh("principal")
        made = await self.call("POST", "/admin/principals", {"name": name, "kind": kind})
        for role in roles:
            await self.call("POST", f"/admin/principals/{made.json['id']}/roles", {"role": role})
        return made.json["id"], name

    async def role(self) -> tuple[str, str]:
        """(id, name)."""
        name = self.fresh("role")
        return (await self.call("POST", "/admin/roles", {"name": name})).json["id"], name

    async def provider(self, **more: object) -> tuple[str, str]:
        """(id, name); it answers, and has a credential and a header that are secrets."""
        name = self.fresh("provider")
        body = {"name": name, "api_base": self.engine_url + "/v1", "upstream_api_key": self.canary(), **more}
        body["extra_headers"] = {"x-token": self.canary()}
        return (await self.call("POST", "/admin/providers", body)).json["id"], name

    async def model(self, *providers: str) -> tuple[str, str, list[str]]:
        """(id, name, ids of its backends)."""
        name = self.fresh("model")
        backends = [{"provider": provider, "upstream_model": "fake-model"} for provider in providers]
        made = await self.call("POST", "/admin/provider-models", {"name": name, "backends": backends})
        return made.json["id"], name, [backend["id"] for backend in made.json["backends"]]

    async def frontend(self, *targets: str) -> tuple[str, str]:
        """(id, name)."""
        name = self.fresh("frontend")
        body = {"name": name, "targets": [{"target": target} for target in targets]}
        return (await self.call("POST", "/admin/frontend-models", body)).json["id"], name


Scenario = Callable[[Stage], Awaitable[Write]]


def leaks(stage: Stage, where: str, content: str) -> Iterator[str]:
    """Where a secret shows."""
    for secret in stage.secrets:
        if secret in content:
            yield f"{where}: {secret[:16]}… in {content[:300]}"
