"""A whole gateway in processes of its own, for tests of what the parts do together.

async with FakeEngine.start() as engine:
    await gateway.expose("assistant", engine.url)
    …                                               # call gateway.proxy_url with gateway.api_key
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import aiohttp

from fastllm_control.demo import AdminApi
from fastllm_control.ready_file import Login
from tests.fakes.up import RunningUp


class Gateway:
    """Postgres, a control plane and proxies, run by `fastllm up`; configured is but the first login."""

    def __init__(self, up: RunningUp) -> None:
        self.up = up

    @property
    def ready(self) -> dict[str, Any]:
        """The ready file as it is now."""
        return self.up.ready()

    @property
    def control_url(self) -> str:
        return str(self.ready["control_url"])

    @property
    def proxy_url(self) -> str:
        return str(self.ready["proxy_url"])

    @property
    def proxy_urls(self) -> list[str]:
        return list(self.ready["proxy_urls"])

    @property
    def api_key(self) -> str:
        """An `invoke` key for every model."""
        return str(self.ready["api_key"])

    def admin(self) -> AdminApi:
        """A session of the administrator, for one block."""
        return AdminApi(self.control_url, Login(**self.ready["admin"]))

    async def expose(self, model: str, engine_url: str, **provider: Any) -> None:
        """Serve an engine's `fake-model` as `model`; returns once every proxy does. `provider` are further
        fields of the provider, which is called `MODEL-engine`; the provider model is `MODEL-served`."""
        body = {
            "name": f"{model}-engine",
            "kind": "static",
            "api_base": engine_url,
            "protocol": "both",
            **provider,
        }
        backend = {"provider": f"{model}-engine", "upstream_model": "fake-model"}
        async with self.admin() as api:
            await api.call("POST", "/admin/providers", body)
            await api.call(
                "POST", "/admin/provider-models", {"name": f"{model}-served", "backends": [backend]}
            )
            targets = [{"target": f"{model}-served"}]
            await api.call("POST", "/admin/frontend-models", {"name": model, "targets": targets})
        await self.until_served(api.version)

    async def until_served(self, version: int, within_seconds: float = 10.0) -> None:
        """Wait until every proxy serves a snapshot of at least `version`."""
        deadline = time.monotonic() + within_seconds
        async with aiohttp.ClientSession() as client:
            for url in self.proxy_urls:
                while True:
                    async with client.get(f"{url}/health") as answer:
                        if (await answer.json(content_type=None))["snapshot_version"] >= version:
                            break
                    assert time.monotonic() < deadline, f"{url} does not serve version {version}"
                    await asyncio.sleep(0.01)
