"""The real control plane on a real socket, in the test's own process and with a clock that tests move.

async with ControlPlane.start(database_url) as plane:
    answer = await plane.call("POST", "/admin/roles", {"name": "team"})     # as an administrator's key
    assert answer.status == 201, answer.json
"""

from __future__ import annotations

import asyncio
import datetime
import io
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
from argon2 import PasswordHasher
from yarl import URL

from fastllm_control.access import Actor
from fastllm_control.app import Services, build_app, build_services
from fastllm_control.config import ControlSettings
from fastllm_control.operations import VERSION_HEADER, Operation
from fastllm_control.security import Passwords
from fastllm_control.serve import listen, serve, url_of
from fastllm_control.services import keys, principals
from fastllm_control.transaction import Transaction
from tests.fakes.log import CapturedLog

PROXY_TOKEN = "proxy-token-for-tests"
PASSWORD = "known to tests alone"
COMMAND = Actor(name="tests", via="command")


class Clock:
    """Real time, plus what a test adds to it."""

    def __init__(self) -> None:
        self.ahead = datetime.timedelta()

    def now(self) -> datetime.datetime:
        return datetime.datetime.now(datetime.UTC) + self.ahead

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time() + self.ahead.total_seconds()

    def advance(self, seconds: float) -> None:
        self.ahead += datetime.timedelta(seconds=seconds)


class Answer(msgspec.Struct, frozen=True):
    """What came back. `json` is `None` for a body that is none."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    cookies: Mapping[str, str]

    @property
    def json(self) -> Any:
        try:
            return msgspec.json.decode(self.body)
        except msgspec.DecodeError:
            return None

    @property
    def error(self) -> dict[str, Any]:
        """The error of a refusal."""
        found: dict[str, Any] = self.json["error"]
        return found

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of a list."""
        assert self.status == 200, self.body
        found: list[dict[str, Any]] = self.json["rows"]
        return found

    @property
    def version(self) -> int | None:
        """The snapshot version that a write made."""
        given = self.headers.get(VERSION_HEADER)
        return None if given is None else int(given)


class ControlPlane:
    """`admin_key` is an admin-scoped key of the person `root`, who holds the role `admin`."""

    def __init__(self, services: Services, url: str, clock: Clock, log: CapturedLog) -> None:
        self.services = services
        self.url = url
        self.clock = clock
        self.log = log
        self.admin_key = ""
        self._http = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), trust_env=False)

    @classmethod
    @asynccontextmanager
    async def start(
        cls,
        database_url: str,
        *,
        settings: Mapping[str, Any] | None = None,
        operations: Sequence[Operation] | None = None,
        admin: str = "root",
    ) -> AsyncIterator[ControlPlane]:
        log, clock = CapturedLog(), Clock()
        chosen = ControlSettings(
            **{
                "database_url": database_url,
                "encryption_key": "11" * 32,
                "proxy_token": PROXY_TOKEN,
                "shutdown_grace": 2.0,
                **(settings or {}),
            }
        )
        given = {} if operations is None else {"operations": operations}
        cheap = Passwords(PasswordHasher(time_cost=1, memory_cost=8, parallelism=1))
        services = build_services(
            chosen, log.log, clock=clock.now, monotonic=clock.monotonic, passwords=cheap, **given
        )
        with listen("127.0.0.1", 0) as listener:
            plane = cls(services, url_of(listener, tls=False), clock, log)
            serving = asyncio.create_task(serve(build_app(services), services, listener))
            try:
                await plane.ready(serving)
                await plane._make_admin(admin)
                yield plane
            finally:
                await plane._http.close()
                services.stopping.set()
                await serving

    async def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        token: str | None = "",
        cookie: str | None = None,
        headers: Mapping[str, str] | None = None,
        raw: bytes | None = None,
    ) -> Answer:
        """`path` is sent as it is written. `token` is the administrator's key unless said otherwise; `None`
        sends no token. `raw` is a body that need not be JSON."""
        sent = dict(headers or {})
        if token is not None and cookie is None:
            sent["authorization"] = f"Bearer {token or self.admin_key}"
        if cookie is not None:
            sent["cookie"] = f"fastllm_session={cookie}"
        sent_body = raw if raw is not None else b"" if body is None else msgspec.json.encode(body)
        data = io.BytesIO(sent_body) if sent_body else None
        url = URL(self.url + path, encoded=True)
        async with self._http.request(method, url, data=data, headers=sent, allow_redirects=False) as got:
            cookies = {name: morsel.value for name, morsel in got.cookies.items()}
            return Answer(got.status, got.headers.copy(), await got.read(), cookies)

    async def principal(self, name: str, *roles: str, kind: str = "user") -> str:
        """A new principal that holds `roles`; returns its id."""
        made = await self.call("POST", "/admin/principals", {"name": name, "kind": kind})
        assert made.status == 201, made.body
        for role in roles:
            given = await self.call("POST", f"/admin/principals/{made.json['id']}/roles", {"role": role})
            assert given.status == 201, given.body
        return str(made.json["id"])

    async def role(self, name: str, *permissions: tuple[str, str]) -> str:
        """A new role with permissions (verb, resource); returns its name."""
        made = await self.call("POST", "/admin/roles", {"name": name})
        assert made.status == 201, made.body
        for verb, resource in permissions:
            given = await self.call(
                "POST", f"/admin/roles/{name}/permissions", {"verb": verb, "resource": resource}
            )
            assert given.status == 201, given.body
        return name

    async def key_of(self, principal: str, scope: str = "admin") -> str:
        """A new key of a principal, an id or name."""
        body = {"principal_id": principal, "name": secrets.token_hex(4), "scope": scope}
        made = await self.call("POST", "/admin/keys", body)
        assert made.status == 201, made.body
        return str(made.json["key"])

    async def log_in(self, name: str = "root", password: str = PASSWORD) -> str:
        """The session cookie's value."""
        answer = await self.call("POST", "/login", {"name": name, "password": password}, token=None)
        assert answer.status == 200, answer.body
        return answer.cookies["fastllm_session"]

    async def ready(self, serving: asyncio.Task[None]) -> None:
        """Wait until it answers."""
        async with asyncio.timeout(20):
            while True:
                if serving.done():
                    serving.result()
                    raise AssertionError("the server ended")
                try:
                    if (await self.call("GET", "/healthz", token=None)).status == 200:
                        return
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.01)

    async def _make_admin(self, name: str) -> None:
        hashed = await self.services.passwords.hash(PASSWORD)
        async with self.services.database.begin(COMMAND) as tx:
            self.admin_key = await make_admin(tx, name, hashed, self.clock.now())


async def make_admin(tx: Transaction, name: str, password_hash: str, now: datetime.datetime) -> str:
    """A person who holds the role `admin`; returns an admin key."""
    await principals.create(tx, name, "user")
    await principals.give_role(tx, name, "admin")
    await principals.set_password(tx, name, password_hash)
    return (await keys.create(tx, name, "test", "admin", None, now)).key
