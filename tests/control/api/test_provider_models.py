"""Provider models and backends over the API."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy import text

from fastllm_shared.ids import uuid7
from tests.fakes.control_plane import Answer, ControlPlane

QWEN = {"provider": "gpu-1", "upstream_model": "Qwen/Qwen3-8B"}


@pytest.fixture
async def stocked(plane: ControlPlane) -> ControlPlane:
    """With two providers that nobody dials."""
    for name in ("gpu-1", "gpu-2"):
        body = {"name": name, "api_base": f"http://127.0.0.1:9/{name}"}
        assert (await plane.call("POST", "/admin/providers?force=true", body)).status == 201
    return plane


async def add(plane: ControlPlane, name: str = "qwen", **more: Any) -> Answer:
    answer = await plane.call("POST", "/admin/provider-models", {"name": name, **more})
    assert answer.status == 201, answer.body
    return answer


async def published(plane: ControlPlane, version: int | None) -> Any:
    assert version is not None
    found = await plane.services.publisher.newer_than(version - 1, 10)
    assert found is not None
    return found.snapshot


async def audited(plane: ControlPlane, count: int = 1) -> list[tuple[str, dict[str, Any]]]:
    rows = (await plane.call("GET", f"/admin/audit?limit={count}")).rows
    return [(row["action"], row["changes"]) for row in rows]


async def execute(plane: ControlPlane, statement: str) -> None:
    async with plane.services.database.engine.begin() as connection:
        await connection.execute(text(statement))


async def test_a_model_is_created_with_its_backends(stocked: ControlPlane) -> None:
    body: dict[str, Any] = {
        "context_length": 32768,
        "input_price_per_mtok": 500_000,
        "output_price_per_mtok": 1_500_000,
        "cached_input_price_per_mtok": 50_000,
        "backends": [QWEN, {"provider": "gpu-2", "upstream_model": "qwen:8b", "unhealthy_after": 5}],
    }
    made = await add(stocked, **body)
    row = made.json
    assert {name: row[name] for name in body if name != "backends"} == {
        name: value for name, value in body.items() if name != "backends"
    }
    shown = [(b["provider"], b["upstream_model"], b["state"], b["condition"]) for b in row["backends"]]
    assert shown == [("gpu-1", "Qwen/Qwen3-8B", "active", "ok"), ("gpu-2", "qwen:8b", "active", "ok")]
    for reference in ("qwen", row["id"]):
        assert (await stocked.call("GET", f"/admin/provider-models/{reference}")).json == row
    snapshot = await published(stocked, made.version)
    entry = snapshot.provider_models[0]
    assert (entry.name, entry.context_length, entry.input_price_per_mtok) == ("qwen", 32768, 500_000)
    assert entry.backends == tuple(backend["id"] for backend in row["backends"])
    assert [backend.unhealthy_after for backend in snapshot.backends] == [None, 5]
    (action, changes), (before, _) = await audited(stocked, 2)
    assert (action, before) == ("provider_model.create", "provider.create")
    assert changes["backends"]["after"] == [
        {
            "id": backend["id"],
            "provider": backend["provider"],
            "upstream_model": backend["upstream_model"],
            "state": "active",
            **more,
        }
        for backend, more in zip(row["backends"], ({}, {"unhealthy_after": 5}), strict=True)
    ]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "name"),
    ({"name": ""}, "name"),
    ({"name": str(uuid7())}, "name"),
    ({"name": "a", "context_length": 0}, "context_length"),
    ({"name": "a", "context_length": -1}, "context_length"),
    ({"name": "a", "context_length": "8k"}, "context_length"),
    ({"name": "a", "context_length": 1.5}, "context_length"),
    ({"name": "a", "context_length": 2**63}, "context_length"),
    ({"name": "a", "input_price_per_mtok": -1}, "input_price_per_mtok"),
    ({"name": "a", "output_price_per_mtok": 0.5}, "output_price_per_mtok"),
    ({"name": "a", "cached_input_price_per_mtok": 10**16}, "cached_input_price_per_mtok"),
    ({"name": "a", "price": 1}, "price"),
    ({"name": "a", "backends": {}}, "backends"),
    ({"name": "a", "backends": [{"provider": "gpu-1"}]}, "backends[0].upstream_model"),
    ({"name": "a", "backends": [QWEN, {**QWEN, "provider": "gpu-3"}]}, "backends[1].provider"),
    ({"name": "a", "backends": [{**QWEN, "provider": ""}]}, "backends[0].provider"),
    ({"name": "a", "backends": [{**QWEN, "upstream_model": ""}]}, "backends[0].upstream_model"),
    ({"name": "a", "backends": [{**QWEN, "upstream_model": "a\nb"}]}, "backends[0].upstream_model"),
    ({"name": "a", "backends": [{**QWEN, "colour": "red"}]}, "backends[0].colour"),
    ({"name": "a", "backends": [{**QWEN, "unhealthy_after": 0}]}, "backends[0].unhealthy_after"),
]


async def test_what_is_wrong_is_named(stocked: ControlPlane) -> None:
    for body, field in WRONG:
        answer = await stocked.call("POST", "/admin/provider-models", body)
        assert (answer.status, answer.error["field"]) == (400, field), body
    assert (await stocked.call("GET", "/admin/provider-models")).rows == []


async def test_the_same_backend_twice_is_refused_and_nothing_is_kept(stocked: ControlPlane) -> None:
    body = {"name": "qwen", "backends": [QWEN, QWEN]}
    answer = await stocked.call("POST", "/admin/provider-models", body)
    assert (answer.status, answer.error["field"]) == (409, "backends[1].upstream_model")
    assert (await stocked.call("GET", "/admin/provider-models/qwen")).status == 404
    await add(stocked, backends=[QWEN])
    again = await stocked.call("POST", "/admin/provider-models/qwen/backends", QWEN)
    assert (again.status, again.error["field"]) == (409, "upstream_model")


async def test_models_and_pools_share_one_name_space(stocked: ControlPlane) -> None:
    await add(stocked)
    again = await stocked.call("POST", "/admin/provider-models", {"name": "qwen"})
    assert (again.status, again.error["field"]) == (409, "name")
    await execute(stocked, f"INSERT INTO pools (id, name, policy) VALUES ('{uuid7()}', 'local', 'weighted')")
    for method, path in (("POST", "/admin/provider-models"), ("PATCH", "/admin/provider-models/qwen")):
        taken = await stocked.call(method, path, {"name": "local"})
        assert (taken.status, taken.error["field"]) == (409, "name")
        assert "pool" in taken.error["message"]


async def test_many_that_take_one_name_at_once(stocked: ControlPlane) -> None:
    body = {"name": "qwen", "backends": [QWEN]}
    answers = await asyncio.gather(*(stocked.call("POST", "/admin/provider-models", body) for _ in range(6)))
    assert sorted(answer.status for answer in answers) == [201, *[409] * 5]


async def test_prices_and_lengths_are_set_and_cleared(stocked: ControlPlane) -> None:
    await add(stocked, context_length=8192)
    prices = {"input_price_per_mtok": 1, "output_price_per_mtok": 0, "cached_input_price_per_mtok": 3}
    changed = await stocked.call("PATCH", "/admin/provider-models/qwen", prices)
    assert prices.items() <= changed.json.items()
    assert changed.json["context_length"] == 8192
    assert (await audited(stocked))[0][1]["input_price_per_mtok"] == {"before": None, "after": 1}
    again = await stocked.call("PATCH", "/admin/provider-models/qwen", prices)
    assert (again.status, again.version) == (200, None)
    cleared = await stocked.call("PATCH", "/admin/provider-models/qwen", dict.fromkeys(prices, None))
    assert cleared.json["output_price_per_mtok"] is None
    entry = (await published(stocked, cleared.version)).provider_models[0]
    assert (entry.input_price_per_mtok, entry.context_length) == (None, 8192)
    none = await stocked.call("PATCH", "/admin/provider-models/qwen", {"context_length": 0})
    assert (none.status, none.error["field"]) == (400, "context_length")


async def test_a_new_name_takes_the_targets_along(stocked: ControlPlane) -> None:
    await add(stocked)
    body = {"name": "assistant", "targets": [{"target": "qwen", "weight": 3}, {"target": "later"}]}
    assert (await stocked.call("POST", "/admin/frontend-models", body)).status == 201
    renamed = await stocked.call("PATCH", "/admin/provider-models/qwen", {"name": "qwen3/8b"})
    assert renamed.status == 200
    row = (await stocked.call("GET", "/admin/frontend-models/assistant")).json
    assert row["targets"] == [
        {"target": "qwen3/8b", "weight": 3, "resolved": True},
        {"target": "later", "weight": 1, "resolved": False},
    ]
    entry = (await published(stocked, renamed.version)).frontend_models[0]
    assert [target.target for target in entry.targets] == ["qwen3/8b", "later"]


async def test_a_deleted_model_leaves_its_targets_unresolved_until_it_returns(stocked: ControlPlane) -> None:
    await add(stocked, backends=[QWEN])
    body = {"name": "assistant", "targets": [{"target": "qwen"}]}
    await stocked.call("POST", "/admin/frontend-models", body)
    gone = await stocked.call("DELETE", "/admin/provider-models/qwen")
    assert (gone.status, gone.json) == (200, {"deleted": True})
    snapshot = await published(stocked, gone.version)
    assert (snapshot.backends, snapshot.provider_models) == ((), ())
    resolved = []
    for _ in range(2):
        row = (await stocked.call("GET", "/admin/frontend-models/assistant")).json
        resolved.append(row["targets"][0]["resolved"])
        if not resolved[-1]:
            await add(stocked, backends=[QWEN])
    assert resolved == [False, True]


async def test_a_backend_is_added_shown_and_taken_away(stocked: ControlPlane) -> None:
    await add(stocked)
    made = await stocked.call("POST", "/admin/provider-models/qwen/backends", QWEN)
    assert made.status == 201
    assert (made.json["provider"], made.json["provider_model"]) == ("gpu-1", "qwen")
    path = f"/admin/backends/{made.json['id']}"
    assert (await stocked.call("GET", path)).json == made.json
    listed = await stocked.call("GET", "/admin/provider-models/qwen/backends")
    assert listed.rows == [made.json]
    gone = await stocked.call("DELETE", path)
    assert gone.json == {"deleted": True}
    assert (await published(stocked, gone.version)).backends == ()
    assert (await stocked.call("GET", path)).status == 404
    unknown = {**QWEN, "provider": "gpu-3"}
    refused = await stocked.call("POST", "/admin/provider-models/qwen/backends", unknown)
    assert (refused.status, refused.error["field"]) == (400, "provider")


SETTINGS: dict[str, Any] = {
    "upstream_timeout_seconds": 5,
    "response_timeout_seconds": 5.5,
    "admission_max_concurrent": 2,
    "admission_high_water": 4,
    "admission_max_queued": 0,
    "admission_max_wait_seconds": 3,
    "unhealthy_after": 3,
    "consecutive_timeout_threshold": 5,
    "health_timeout_seconds": 10,
}


async def backend_path(plane: ControlPlane) -> str:
    made = await add(plane, backends=[QWEN])
    return f"/admin/backends/{made.json['backends'][0]['id']}"


async def test_every_setting_reaches_proxies_and_can_be_cleared(stocked: ControlPlane) -> None:
    path = await backend_path(stocked)
    changed = await stocked.call("PATCH", path, {**SETTINGS, "state": "draining", "state_reason": "why not"})
    assert changed.status == 200
    assert SETTINGS.items() <= changed.json.items()
    assert (changed.json["state"], changed.json["state_by"]) == ("draining", "root")
    entry = (await published(stocked, changed.version)).backends[0]
    assert {name: getattr(entry, name) for name in SETTINGS} == SETTINGS
    assert entry.state == "draining"
    assert (await stocked.call("PATCH", path, SETTINGS)).version is None
    cleared = await stocked.call("PATCH", path, dict.fromkeys(SETTINGS) | {"state": "active"})
    entry = (await published(stocked, cleared.version)).backends[0]
    assert (entry.upstream_timeout_seconds, entry.admission_max_concurrent) == (None, None)
    assert (entry.admission_high_water, entry.admission_max_queued) == (4, 64)
    assert (entry.admission_max_wait_seconds, entry.state) == (30.0, "active")


async def test_settings_out_of_shape_are_named(stocked: ControlPlane) -> None:
    path = await backend_path(stocked)
    may_be_zero = ("admission_max_queued", "admission_max_wait_seconds")
    for name in (*SETTINGS, "state", "accept", "upstream_model", "colour"):
        values: tuple[Any, ...] = (-1, "x" * 501, [], True, 0)
        for value in values:
            if (name, value) == ("accept", True) or (name in may_be_zero and value == 0):
                continue
            answer = await stocked.call("PATCH", path, {name: value})
            assert (answer.status, answer.error["field"]) == (400, name), (name, value)


async def test_a_disabled_backend_is_not_published(stocked: ControlPlane) -> None:
    path = await backend_path(stocked)
    off = await stocked.call("PATCH", path, {"state": "disabled"})
    snapshot = await published(stocked, off.version)
    assert (snapshot.backends, snapshot.provider_models[0].backends) == ((), ())
    row = (await stocked.call("GET", "/admin/provider-models/qwen")).json
    assert row["backends"][0]["state"] == "disabled"


async def test_an_upstream_name_can_be_changed_but_not_doubled(stocked: ControlPlane) -> None:
    path = await backend_path(stocked)
    changed = await stocked.call("PATCH", path, {"upstream_model": "qwen-next"})
    assert (await published(stocked, changed.version)).backends[0].upstream_model == "qwen-next"
    await stocked.call("POST", "/admin/provider-models/qwen/backends", QWEN)
    doubled = await stocked.call("PATCH", path, {"upstream_model": QWEN["upstream_model"]})
    assert (doubled.status, doubled.error["field"]) == (409, "upstream_model")


async def test_a_pending_backend_is_out_until_it_is_accepted(stocked: ControlPlane) -> None:
    path = await backend_path(stocked)
    owner = await stocked.principal("fleet", kind="service_account")
    await execute(
        stocked, f"UPDATE providers SET kind = 'dynamic', owner_id = '{owner}' WHERE name = 'gpu-1'"
    )
    await execute(stocked, "UPDATE backends SET condition = 'pending', reason = 'not accepted'")
    rebuilt = await stocked.call("POST", "/admin/snapshots/rebuild")
    assert (await published(stocked, rebuilt.version)).backends == ()
    accepted = await stocked.call("PATCH", path, {"accept": True})
    assert (accepted.json["condition"], accepted.json["reason"]) == ("ok", None)
    assert len((await published(stocked, accepted.version)).backends) == 1
    async with stocked.services.database.engine.connect() as connection:
        kept = await connection.execute(
            text("SELECT principal_id, provider_model, accepted_by FROM acceptances")
        )
        assert [(str(row[0]), row[1], row[2]) for row in kept] == [(owner, "qwen", "root")]
    assert (await stocked.call("PATCH", path, {"accept": True})).version is None


async def test_names_of_all_sorts_are_reached(stocked: ControlPlane) -> None:
    for name in ("org/qwen", "a b", "ü", "50%", "x/backends"):
        made = await add(stocked, name)
        path = f"/admin/provider-models/{quote(name, safe='')}"
        assert (await stocked.call("GET", path)).json["id"] == made.json["id"]
        assert (await stocked.call("POST", f"{path}/backends", QWEN)).status == 201


async def test_lists_are_paged_and_filtered(stocked: ControlPlane) -> None:
    await add(stocked, "a", backends=[QWEN])
    await add(stocked, "b", backends=[{**QWEN, "provider": "gpu-2"}])
    await add(stocked, "c", backends=[QWEN, {**QWEN, "provider": "gpu-2"}])
    first = await stocked.call("GET", "/admin/provider-models?limit=2")
    second = await stocked.call("GET", f"/admin/provider-models?limit=2&after={first.json['next']}")
    assert [row["name"] for row in first.rows + second.rows] == ["a", "b", "c"]
    assert second.json["next"] is None
    only = await stocked.call("GET", "/admin/provider-models?provider=gpu-2")
    assert [row["name"] for row in only.rows] == ["b", "c"]


ROUTES = [
    ("GET", "/admin/provider-models"),
    ("POST", "/admin/provider-models"),
    ("GET", "/admin/provider-models/qwen"),
    ("PATCH", "/admin/provider-models/qwen"),
    ("DELETE", "/admin/provider-models/qwen"),
    ("GET", "/admin/provider-models/qwen/backends"),
    ("POST", "/admin/provider-models/qwen/backends"),
    ("GET", f"/admin/backends/{uuid7()}"),
    ("PATCH", f"/admin/backends/{uuid7()}"),
    ("DELETE", f"/admin/backends/{uuid7()}"),
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
        body = QWEN if method == "POST" else {} if method == "PATCH" else None
        answer = await plane.call(method, path, body)
        assert answer.status == 404
        assert answer.error["code"] in ("provider_model_not_found", "backend_not_found")
    assert (await plane.call("GET", "/admin/backends/qwen")).status == 404
