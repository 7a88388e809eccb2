"""Registering the demo's engine, by the calls of the admin API that an operator would make."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import aiohttp

from fastllm_control.demo_engine import MODEL
from fastllm_control.operations import VERSION_HEADER
from fastllm_control.ready_file import Login
from fastllm_control.security import SESSION_COOKIE

PROVIDER = "demo"
FRONTEND_MODEL = "smollm2"
_TIMEOUT = aiohttp.ClientTimeout(total=30)


class DemoError(Exception):
    """The control plane refused a step; the text says which and why."""


async def register(control_url: str, login: Login, engine_url: str, engine_key: str) -> int:
    """Make provider, provider model and frontend model as they have to be; what is right stays.

    `engine_url` ends in `/v1`. Returns the version of the snapshot that holds what was changed,
    0 if nothing was.
    """
    async with AdminApi(control_url, login) as api:
        await _provider(api, engine_url, engine_key)
        await _provider_model(api)
        if await api.find("/admin/frontend-models", FRONTEND_MODEL) is None:
            targets = [{"target": MODEL}]
            await api.call("POST", "/admin/frontend-models", {"name": FRONTEND_MODEL, "targets": targets})
        return api.version


async def _provider(api: AdminApi, engine_url: str, engine_key: str) -> None:
    wanted = {"api_base": engine_url, "upstream_api_key": engine_key}
    found = await api.find("/admin/providers", PROVIDER)
    if found is None:
        await api.call(
            "POST", "/admin/providers", {"name": PROVIDER, "kind": "static", "protocol": "both", **wanted}
        )
    elif found["api_base"] != engine_url:
        await api.call("PATCH", f"/admin/providers/{PROVIDER}", wanted)


async def _provider_model(api: AdminApi) -> None:
    backend = {"provider": PROVIDER, "upstream_model": MODEL}
    found = await api.find("/admin/provider-models", MODEL)
    if found is None:
        await api.call(
            "POST", "/admin/provider-models", {"name": MODEL, "context_length": 2048, "backends": [backend]}
        )
    elif not any(one["provider"] == PROVIDER for one in found["backends"]):
        await api.call("POST", f"/admin/provider-models/{MODEL}/backends", backend)


class AdminApi:
    """A session on the admin API, for as long as the block lasts; `version` is that of the last change.
    Raises `DemoError`."""

    def __init__(self, control_url: str, login: Login) -> None:
        self._control_url = control_url
        self._login = login
        self.version = 0
        self._cookie: dict[str, str] = {}
        self._client = aiohttp.ClientSession(timeout=_TIMEOUT, cookie_jar=aiohttp.DummyCookieJar())

    async def __aenter__(self) -> AdminApi:
        try:
            credentials = {"name": self._login.name, "password": self._login.password}
            async with self._client.post(f"{self._control_url}/login", json=credentials) as answer:
                if answer.status != 200:
                    raise DemoError(f"POST /login answered {answer.status}: {await answer.text()}")
                session = answer.cookies[SESSION_COOKIE].value
        except BaseException:
            await self._client.close()
            raise
        self._cookie = {"Cookie": f"{SESSION_COOKIE}={session}"}
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            async with self._client.post(f"{self._control_url}/logout", headers=self._cookie):
                pass
        finally:
            await self._client.close()

    async def call(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        """The decoded answer."""
        async with self._client.request(
            method, self._control_url + path, json=body, headers=self._cookie
        ) as answer:
            if answer.status >= 400:
                raise DemoError(f"{method} {path} answered {answer.status}: {await answer.text()}")
            self.version = int(answer.headers.get(VERSION_HEADER, self.version))
            return await answer.json()

    async def find(self, path: str, name: str) -> dict[str, Any] | None:
        """The row called `name` of a list, all pages of it searched."""
        after = ""
        while True:
            page = await self.call("GET", f"{path}?limit=100{after}", None)
            for row in page["rows"]:
                if row["name"] == name:
                    found: dict[str, Any] = row
                    return found
            if page["next"] is None:
                return None
            after = f"&after={page['next']}"
