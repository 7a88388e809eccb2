"""What an import makes, as a proxy serves it: requests reach the engine that LiteLLM sent them to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest

from fastllm_control.config import DatabaseSettings
from fastllm_control.database import open_engine
from fastllm_control.repositories import content
from fastllm_control.snapshot import build
from fastllm_control.transaction import Database
from fastllm_shared.keys import digest_of
from fastllm_shared.snapshot import KeyEntry, PrincipalEntry
from tests.fakes.configuration import RING
from tests.fakes.engine import Answer, FakeEngine
from tests.fakes.litellm import ENVIRON, imported, realistic
from tests.proxy.rig import KEY, Gateway, chat, gateway

CHAT = "/chat/completions"
ILL = Answer(status=500)


class Served(msgspec.Struct):
    proxy: Gateway
    engines: dict[str, FakeEngine]

    async def ask(self, model: str) -> int:
        return (await self.proxy.post(body=chat(model))).status

    def hits(self) -> dict[str, int]:
        """Only of engines that were asked."""
        return {name: engine.hits(CHAT) for name, engine in self.engines.items() if engine.hits(CHAT)}


@pytest.fixture
async def served(database_url: str, tmp_path: Path) -> AsyncIterator[Served]:
    async with AsyncExitStack() as stack:
        database = Database(open_engine(DatabaseSettings(database_url=database_url)))
        stack.push_async_callback(database.engine.dispose)
        names = ("A", "B", "C", "DOWN")
        engines = {name: await stack.enter_async_context(FakeEngine.start()) for name in names}
        bases = {f"ENGINE_{name}": engine.url for name, engine in engines.items()}
        await imported(database, realistic(), {**ENVIRON, **bases})
        async with database.read() as session:
            snapshot = build(await content.read(session), RING.open).snapshot
        proxy = await stack.enter_async_context(gateway(tmp_path))
        models = tuple(entry.name for entry in snapshot.frontend_models)
        proxy.given = msgspec.structs.replace(
            snapshot,
            keys=(KeyEntry(digest_of(KEY), "key-1", "principal-1", "sk-test"),),
            principals=(PrincipalEntry("principal-1", "team-a", "service_account", models=models),),
        )
        proxy.configure(version=2)
        yield Served(proxy, engines)


async def test_a_model_reaches_its_engine_under_its_name_there_and_with_its_credential(
    served: Served,
) -> None:
    assert await served.ask("chat-large") == 200
    assert served.hits() == {"C": 1}
    (request,) = served.engines["C"].requests
    assert request.json()["model"] == "qwen3-235b"
    assert request.header("authorization") == "Bearer canary-ENGINE_C_KEY"


@pytest.mark.parametrize("model", ["chat", "default-chat"])
async def test_a_group_and_its_alias_reach_only_the_groups_engines(served: Served, model: str) -> None:
    assert {await served.ask(model) for _ in range(6)} == {200}
    assert set(served.hits()) <= {"A", "B"}
    assert sum(served.hits().values()) == 6


async def test_a_fallback_is_asked_only_where_the_model_fails(served: Served) -> None:
    assert await served.ask("frail") == 200
    assert served.hits() == {"DOWN": 1}
    served.engines["DOWN"].script(CHAT, ILL)
    assert await served.ask("frail") == 200
    assert served.hits()["DOWN"] == 2
    assert set(served.hits()) - {"DOWN"} < {"A", "B"}
