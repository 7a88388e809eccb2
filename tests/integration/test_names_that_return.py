"""What is deleted and made again, in every order: whatever named it still does, and leads there again."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Sequence
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy import text

from fastllm_shared.usage import encode_batch
from tests.fakes.control_plane import PROXY_TOKEN, Answer, ControlPlane
from tests.fakes.usage import batch_of, make_event

PROVIDER, MODEL, POOL, FRONTEND = "gpu-1", "org/qwen", "site/local", "team/assistant"
PATHS = {
    PROVIDER: "/admin/providers/gpu-1?force=true",
    MODEL: f"/admin/provider-models/{quote(MODEL, safe='')}",
    POOL: f"/admin/pools/{POOL}",
}
BACKEND = {"provider": PROVIDER, "upstream_model": "Qwen/Qwen3-8B"}
TARGETS = [MODEL, POOL]
MEMBERS = {"members": [{"provider_model": MODEL}]}
ORDERS = [order for length in (1, 2, 3) for order in itertools.permutations(PATHS, length)]
CYCLES = [
    # The orders of return by twos, so that each test is quick.
    (gone, returns[start : start + 2])
    for gone in ORDERS
    for returns in [list(itertools.permutations(gone))]
    for start in range(0, len(returns), 2)
]


class World:
    """A provider, a model, a pool and all that can name them."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.there: set[str] = set()

    async def call(self, method: str, path: str, body: object = None) -> Answer:
        answer = await self.plane.call(method, path, body)
        assert answer.status < 300, (method, path, answer.body)
        return answer

    async def build(self) -> None:
        for name in (PROVIDER, MODEL, POOL):
            await self.make(name)
        targets = [{"target": name} for name in TARGETS]
        await self.call("POST", "/admin/frontend-models", {"name": FRONTEND, "targets": targets})
        await self.call("POST", f"/admin/frontend-models/{FRONTEND}/rules", {"targets": targets})
        await self.call("POST", "/admin/frontend-models", {"name": "other"})
        jump = {"action": "jump", "jump": FRONTEND}
        await self.call("POST", "/admin/frontend-models/other/rules", jump)
        await self.call("PUT", "/admin/fallback-model", {"frontend_model": FRONTEND})
        await self.call("POST", "/admin/principals", {"name": "team"})
        await self.call("POST", "/admin/roles", {"name": "team-models"})
        grant = {"verb": "model:invoke", "resource": f"model/{FRONTEND}"}
        await self.call("POST", "/admin/roles/team-models/permissions", grant)
        await self.call("POST", "/admin/principals/team/roles", {"role": "team-models"})
        stored = await self.plane.call(
            "POST", "/usage", raw=encode_batch(batch_of(make_event())), token=PROXY_TOKEN
        )
        assert stored.status == 200

    async def make(self, name: str) -> Answer:
        """Make one of the three again; as far as the others are there it is whole at once."""
        self.there.add(name)
        if name == PROVIDER:
            provider = {"name": PROVIDER, "api_base": "http://127.0.0.1:9/v1"}
            made = await self.call("POST", "/admin/providers?force=true", provider)
            return made if MODEL not in self.there else await self._served()
        if name == MODEL:
            backends = [BACKEND] if PROVIDER in self.there else []
            made = await self.call("POST", "/admin/provider-models", {"name": MODEL, "backends": backends})
            members = (await self.pool())["members"] if POOL in self.there else [MODEL]
            return made if members else await self.call("PATCH", PATHS[POOL], MEMBERS)
        if MODEL in self.there:
            return await self.call("POST", "/admin/pools", {"name": POOL, **MEMBERS})
        refused = await self.plane.call("POST", "/admin/pools", {"name": POOL, **MEMBERS})
        assert (refused.status, refused.error["field"]) == (400, "members[0].provider_model")
        return await self.call("POST", "/admin/pools", {"name": POOL})

    async def _served(self) -> Answer:
        return await self.call("POST", f"{PATHS[MODEL]}/backends", BACKEND)

    async def pool(self) -> dict[str, Any]:
        shown: dict[str, Any] = (await self.plane.call("GET", PATHS[POOL])).json
        return shown

    async def remove(self, name: str) -> Answer:
        self.there.discard(name)
        return await self.call("DELETE", PATHS[name])

    async def published(self, answer: Answer) -> Any:
        assert answer.version is not None
        found = await self.plane.services.publisher.newer_than(answer.version - 1, 10)
        assert found is not None
        return found.snapshot

    async def names_stand(self, targets: Sequence[str], frontend: str) -> None:
        """Targets, grants, jumps and usage are as they were, resolved or not."""
        shown = [{"target": t, "weight": 1, "resolved": t in self.there} for t in targets]
        assert (await self.plane.call("GET", f"/admin/frontend-models/{frontend}")).json["targets"] == shown
        (rule,) = (await self.plane.call("GET", f"/admin/frontend-models/{frontend}/rules")).rows
        assert rule["targets"] == shown
        (jump,) = (await self.plane.call("GET", "/admin/frontend-models/other/rules")).rows
        assert (jump["jump"], jump["jump_resolved"]) == (frontend, True)
        fallback = await self.plane.call("GET", "/admin/fallback-model")
        assert fallback.json == {"frontend_model": frontend, "resolved": True}
        role = await self.plane.call("GET", "/admin/roles/team-models")
        assert role.json["permissions"] == [{"verb": "model:invoke", "resource": f"model/{frontend}"}]
        assert len((await self.plane.call("GET", "/admin/usage/events")).rows) == 1

    async def whole(self, answer: Answer, targets: Sequence[str], frontend: str) -> None:
        """Everything leads to the one backend."""
        await self.names_stand(targets, frontend)
        snapshot = await self.published(answer)
        (backend,) = snapshot.backends
        assert [(m.name, m.backends) for m in snapshot.provider_models] == [(targets[0], (backend.id,))]
        (pool,) = snapshot.pools
        assert (pool.name, [member.backend_id for member in pool.members]) == (targets[1], [backend.id])
        entry = next(entry for entry in snapshot.frontend_models if entry.name == frontend)
        assert [target.target for target in entry.targets] == list(targets)
        assert [target.target for target in entry.rules[0].targets] == list(targets)
        team = next(principal for principal in snapshot.principals if principal.name == "team")
        assert team.models == (frontend,)
        assert snapshot.fallback_model == frontend


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[World]:
    async with ControlPlane.start(database_url) as plane:
        built = World(plane)
        await built.build()
        yield built


@pytest.mark.parametrize(("gone", "returns"), CYCLES)
async def test_whatever_goes_and_returns_in_whatever_order(
    world: World, gone: tuple[str, ...], returns: list[tuple[str, ...]]
) -> None:
    for back in returns:
        for name in gone:
            answer = await world.remove(name)
        await world.names_stand(TARGETS, FRONTEND)
        if MODEL in world.there:
            (listed,) = (await world.plane.call("GET", "/admin/provider-models")).rows
            assert [b["provider"] for b in listed["backends"]] == ([] if PROVIDER in gone else [PROVIDER])
        if POOL in world.there:
            (member,) = (await world.pool())["members"]
            assert (member["provider_model"], member["resolved"]) == (MODEL, MODEL in world.there)
            if {MODEL, PROVIDER} - world.there:
                assert (await world.published(answer)).pools[0].members == ()
        for name in back:
            answer = await world.make(name)
        await world.whole(answer, TARGETS, FRONTEND)


async def test_a_provider_that_serves_is_deleted_by_force_only(world: World) -> None:
    refused = await world.plane.call("DELETE", "/admin/providers/gpu-1")
    assert refused.status == 409
    assert MODEL in refused.error["message"]
    snapshot = await world.published(await world.remove(PROVIDER))
    (left,) = snapshot.provider_models
    assert (left.name, left.backends, snapshot.backends) == (MODEL, (), ())


async def test_renames_lose_nothing(world: World) -> None:
    async with world.plane.services.database.engine.begin() as connection:
        accepted = "INSERT INTO acceptances (principal_id, provider_model, accepted_by)"
        await connection.execute(
            text(f"{accepted} SELECT id, :m, 'root' FROM principals WHERE name = 'team'"), {"m": MODEL}
        )
    names = [MODEL, POOL, FRONTEND]
    for number in range(2):
        # Once by the raw path and once with %2F.
        for at, kind in enumerate(("provider-models", "pools", "frontend-models")):
            path = names[at] if number else quote(names[at], safe="")
            after = f"new/{number}/{kind}"
            answer = await world.call("PATCH", f"/admin/{kind}/{path}", {"name": after})
            assert (await world.plane.call("GET", f"/admin/{kind}/{path}")).status == 404
            world.there = {after if name == names[at] else name for name in world.there}
            names[at] = after
            await world.whole(answer, names[:2], names[2])
    async with world.plane.services.database.read() as session:
        found = (await session.scalars(text("SELECT provider_model FROM acceptances"))).all()
    assert names[0] in found
