"""Writes about pools."""

from __future__ import annotations

from tests.contract.audited import Scenario, Stage, Write


async def create_pool(stage: Stage) -> Write:
    _, model, _ = await stage.model()
    name = stage.fresh("pool")
    return Write(
        path="/admin/pools",
        body={"name": name, "policy": "least-loaded", "members": [{"provider_model": model, "weight": 2}]},
        action="pool.create",
        kind="pool",
        name=name,
        fields=frozenset({"policy", "members"}),
        again="refused",
    )


async def change_pool(stage: Stage) -> Write:
    identity, _ = await _pool(stage)
    _, model, _ = await stage.model()
    name = stage.fresh("renamed")
    return Write(
        path=f"/admin/pools/{identity}",
        body={"name": name, "policy": "round-robin", "members": [{"provider_model": model}]},
        action="pool.update",
        kind="pool",
        name=name,
        fields=frozenset({"name", "policy", "members"}),
    )


async def delete_pool(stage: Stage) -> Write:
    identity, name = await _pool(stage)
    return Write(
        path=f"/admin/pools/{identity}",
        action="pool.delete",
        kind="pool",
        target_id=identity,
        name=name,
        fields=frozenset({"policy", "members"}),
        again="refused",
    )


async def _pool(stage: Stage) -> tuple[str, str]:
    name = stage.fresh("pool")
    made = await stage.call("POST", "/admin/pools", {"name": name})
    return str(made.json["id"]), name


WRITES: dict[str, Scenario] = {
    "POST /admin/pools": create_pool,
    "PATCH /admin/pools/{id}": change_pool,
    "DELETE /admin/pools/{id}": delete_pool,
}
