"""Frontend models over the API."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy import text

from fastllm_shared.ids import uuid7
from tests.fakes.control_plane import Answer, ControlPlane


async def add(plane: ControlPlane, name: str = "assistant", **more: Any) -> Answer:
    answer = await plane.call("POST", "/admin/frontend-models", {"name": name, **more})
    assert answer.status == 201, answer.body
    return answer


async def published(plane: ControlPlane, version: int | None) -> Any:
    assert version is not None
    found = await plane.services.publisher.newer_than(version - 1, 10)
    assert found is not None
    return found.snapshot


async def newest_audit(plane: ControlPlane) -> dict[str, Any]:
    rows: list[dict[str, Any]] = (await plane.call("GET", "/admin/audit?limit=1")).rows
    return rows[0]


async def execute(plane: ControlPlane, statement: str) -> list[Any]:
    async with plane.services.database.engine.begin() as connection:
        result = await connection.execute(text(statement))
        return list(result) if result.returns_rows else []


async def test_a_model_is_created_with_targets_that_need_not_exist(plane: ControlPlane) -> None:
    assert (await plane.call("POST", "/admin/provider-models", {"name": "qwen"})).status == 201
    made = await add(plane, policy=None, targets=[{"target": "qwen", "weight": 3}, {"target": "spill"}])
    row = made.json
    assert (row["name"], row["policy"], row["retry_on_timeout"]) == ("assistant", None, False)
    assert row["targets"] == [
        {"target": "qwen", "weight": 3, "resolved": True},
        {"target": "spill", "weight": 1, "resolved": False},
    ]
    for reference in ("assistant", row["id"]):
        assert (await plane.call("GET", f"/admin/frontend-models/{reference}")).json == row
        targets = await plane.call("GET", f"/admin/frontend-models/{reference}/targets")
        assert (targets.rows, targets.json["next"]) == (row["targets"], None)
    entry = (await published(plane, made.version)).frontend_models[0]
    assert [(target.target, target.weight) for target in entry.targets] == [("qwen", 3), ("spill", 1)]
    assert entry.id == row["id"]
    assert (await newest_audit(plane))["action"] == "frontend_model.create"


async def test_a_pool_resolves_a_target(plane: ControlPlane) -> None:
    await execute(plane, f"INSERT INTO pools (id, name, policy) VALUES ('{uuid7()}', 'local', 'weighted')")
    made = await add(plane, targets=[{"target": "local"}])
    assert made.json["targets"][0]["resolved"] is True


async def test_a_target_may_be_there_for_failover_alone(plane: ControlPlane) -> None:
    made = await add(plane, targets=[{"target": "first"}, {"target": "spare", "weight": 0}])
    assert [target["weight"] for target in made.json["targets"]] == [1, 0]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "name"),
    ({"name": ""}, "name"),
    ({"name": "*"}, "name"),
    ({"name": str(uuid7())}, "name"),
    ({"name": 7}, "name"),
    ({"name": "x" * 201}, "name"),
    ({"name": "a", "policy": "random"}, "policy"),
    ({"name": "a", "retry_on_timeout": "yes"}, "retry_on_timeout"),
    ({"name": "a", "targets": {}}, "targets"),
    ({"name": "a", "targets": ["qwen"]}, "targets[0]"),
    ({"name": "a", "targets": [{}]}, "targets[0].target"),
    ({"name": "a", "targets": [{"target": "q", "weight": -1}]}, "targets[0].weight"),
    ({"name": "a", "targets": [{"target": "q"}, {"target": "r", "weight": -1}]}, "targets[1].weight"),
    ({"name": "a", "targets": [{"target": "q", "weight": 1.5}]}, "targets[0].weight"),
    ({"name": "a", "targets": [{"target": "q"}, {"target": "q"}]}, "targets[1].target"),
    ({"name": "a", "targets": [{"target": "q", "colour": "red"}]}, "targets[0].colour"),
    ({"name": "a", "colour": "red"}, "colour"),
]


async def test_what_is_wrong_is_named(plane: ControlPlane) -> None:
    for body, field in WRONG:
        answer = await plane.call("POST", "/admin/frontend-models", body)
        assert (answer.status, answer.error["field"]) == (400, field), body
    assert (await plane.call("GET", "/admin/frontend-models")).rows == []


async def test_names_are_unique_among_themselves_only(plane: ControlPlane) -> None:
    await plane.call("POST", "/admin/provider-models", {"name": "qwen"})
    await add(plane, "qwen")
    await add(plane, "other")
    for method, path in (("POST", "/admin/frontend-models"), ("PATCH", "/admin/frontend-models/other")):
        taken = await plane.call(method, path, {"name": "qwen"})
        assert (taken.status, taken.error["field"]) == (409, "name")


async def test_many_that_take_one_name_at_once(plane: ControlPlane) -> None:
    body = {"name": "assistant", "targets": [{"target": "q"}]}
    answers = await asyncio.gather(*(plane.call("POST", "/admin/frontend-models", body) for _ in range(6)))
    assert sorted(answer.status for answer in answers) == [201, *[409] * 5]


async def test_a_patch_changes_what_it_gives(plane: ControlPlane) -> None:
    await add(plane, targets=[{"target": "a"}])
    patch = {"policy": "least-loaded", "retry_on_timeout": True}
    changed = await plane.call("PATCH", "/admin/frontend-models/assistant", patch)
    assert patch.items() <= changed.json.items()
    assert [target["target"] for target in changed.json["targets"]] == ["a"]
    entry = (await published(plane, changed.version)).frontend_models[0]
    assert (entry.policy, entry.retry_on_timeout) == ("least-loaded", True)
    for same in (patch, {}, {"name": "assistant"}, {"targets": [{"target": "a", "weight": 1}]}):
        assert (await plane.call("PATCH", "/admin/frontend-models/assistant", same)).version is None
    cleared = await plane.call("PATCH", "/admin/frontend-models/assistant", {"policy": None, "targets": []})
    assert (cleared.json["policy"], cleared.json["targets"]) == (None, [])


@pytest.mark.parametrize("wrapped", [True, False])
async def test_targets_are_replaced_as_a_whole(plane: ControlPlane, wrapped: bool) -> None:
    await add(plane, targets=[{"target": "a"}, {"target": "b", "weight": 2}])
    wanted = [{"target": "b", "weight": 5}, {"target": "c/d", "weight": 1}, {"target": "a", "weight": 1}]
    body = {"targets": wanted} if wrapped else wanted
    put = await plane.call("PUT", "/admin/frontend-models/assistant/targets", body)
    assert put.status == 200
    assert [(t["target"], t["weight"]) for t in put.json["targets"]] == [("b", 5), ("c/d", 1), ("a", 1)]
    entry = (await published(plane, put.version)).frontend_models[0]
    assert [target.target for target in entry.targets] == ["b", "c/d", "a"]
    audit = await newest_audit(plane)
    assert audit["changes"]["targets"]["after"] == wanted
    assert (await plane.call("PUT", "/admin/frontend-models/assistant/targets", body)).version is None
    for bad in ({}, "x", [{"target": "a"}, {"target": "a"}], {"targets": [{"weight": 1}]}):
        refused = await plane.call("PUT", "/admin/frontend-models/assistant/targets", bad)
        assert refused.status == 400


async def test_a_new_name_takes_grants_jumps_and_the_fallback_along(plane: ControlPlane) -> None:
    made = await add(plane)
    other = await add(plane, "other")
    await plane.role("team", ("model:invoke", "model/assistant"), ("model:invoke", "model/other"))
    await plane.role("both", ("model:invoke", "model/assistant"), ("model:invoke", "model/helper/v2"))
    await plane.principal("someone", "team")
    await execute(plane, "INSERT INTO settings (name, value) VALUES ('fallback_model', '\"assistant\"')")
    await execute(
        plane,
        "INSERT INTO routing_rules (id, frontend_model_id, position, action, jump)"
        f" VALUES ('{uuid7()}', '{other.json['id']}', 0, 'jump', 'assistant')",
    )
    renamed = await plane.call("PATCH", "/admin/frontend-models/assistant", {"name": "helper/v2"})
    assert renamed.json["id"] == made.json["id"]
    snapshot = await published(plane, renamed.version)
    granted = {principal.name: principal.models for principal in snapshot.principals}
    assert granted["someone"] == ("helper/v2", "other")
    assert snapshot.fallback_model == "helper/v2"
    jumps = {model.name: [rule.jump for rule in model.rules] for model in snapshot.frontend_models}
    assert jumps == {"helper/v2": [], "other": ["helper/v2"]}
    roles = {row["name"]: row["permissions"] for row in (await plane.call("GET", "/admin/roles")).rows}
    assert roles["both"] == [{"verb": "model:invoke", "resource": "model/helper/v2"}]


async def test_a_deleted_model_leaves_the_snapshot_with_its_rules(plane: ControlPlane) -> None:
    made = await add(plane, targets=[{"target": "q"}])
    await execute(
        plane,
        "INSERT INTO routing_rules (id, frontend_model_id, position) VALUES"
        f" ('{uuid7()}', '{made.json['id']}', 0)",
    )
    gone = await plane.call("DELETE", "/admin/frontend-models/assistant")
    assert (gone.status, gone.json) == (200, {"deleted": True})
    assert (await published(plane, gone.version)).frontend_models == ()
    assert (await newest_audit(plane))["action"] == "frontend_model.delete"
    assert await execute(plane, "SELECT 1 FROM routing_rules") == []
    assert (await plane.call("GET", "/admin/frontend-models/assistant")).status == 404


async def test_names_of_all_sorts_are_reached(plane: ControlPlane) -> None:
    for name in ("org/assistant", "a b", "ü", "50%", "x/targets", "a*b"):
        made = await add(plane, name)
        path = f"/admin/frontend-models/{quote(name, safe='')}"
        assert (await plane.call("GET", path)).json["id"] == made.json["id"]
        assert (await plane.call("PUT", f"{path}/targets", [{"target": name}])).status == 200


async def test_lists_are_paged_and_filtered(plane: ControlPlane) -> None:
    for name, target in (("a", "q"), ("b", "r"), ("c", "q")):
        await add(plane, name, targets=[{"target": target}])
    first = await plane.call("GET", "/admin/frontend-models?limit=2")
    second = await plane.call("GET", f"/admin/frontend-models?limit=2&after={first.json['next']}")
    assert [row["name"] for row in first.rows + second.rows] == ["a", "b", "c"]
    only = await plane.call("GET", "/admin/frontend-models?target=q")
    assert [row["name"] for row in only.rows] == ["a", "c"]


ROUTES = [
    ("GET", "/admin/frontend-models"),
    ("POST", "/admin/frontend-models"),
    ("GET", "/admin/frontend-models/assistant"),
    ("PATCH", "/admin/frontend-models/assistant"),
    ("DELETE", "/admin/frontend-models/assistant"),
    ("GET", "/admin/frontend-models/assistant/targets"),
    ("PUT", "/admin/frontend-models/assistant/targets"),
]


async def test_who_may(plane: ControlPlane) -> None:
    await plane.principal("reader", "viewer")
    reader = await plane.key_of("reader")
    for method, path in ROUTES:
        assert (await plane.call(method, path, {}, token=None)).status == 401
        answer = await plane.call(method, path, {}, token=reader)
        assert (answer.status == 403) is (method != "GET"), (method, path, answer.status)


async def test_what_is_not_there(plane: ControlPlane) -> None:
    for method, path in ROUTES[2:]:
        body: object = [] if method == "PUT" else {} if method == "PATCH" else None
        answer = await plane.call(method, path, body)
        assert (answer.status, answer.error["code"]) == (404, "frontend_model_not_found")
