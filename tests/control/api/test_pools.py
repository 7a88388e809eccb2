"""Pools over the API."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from tests.fakes.control_plane import Answer, ControlPlane

CLOSED = "http://127.0.0.1:9/v1"


async def stocked(plane: ControlPlane) -> str:
    """Two models on one provider; returns a backend's id."""
    provider = {"name": "gpu-1", "api_base": CLOSED}
    assert (await plane.call("POST", "/admin/providers?force=true", provider)).status == 201
    for name in ("qwen", "llama"):
        served = [{"provider": "gpu-1", "upstream_model": name}]
        made = await plane.call("POST", "/admin/provider-models", {"name": name, "backends": served})
        assert made.status == 201, made.body
    backends: list[dict[str, Any]] = made.json["backends"]
    return str(backends[0]["id"])


async def add(plane: ControlPlane, **form: Any) -> Answer:
    answer = await plane.call("POST", "/admin/pools", {"name": "local", **form})
    assert answer.status == 201, answer.body
    return answer


async def published(plane: ControlPlane, answer: Answer) -> Any:
    assert answer.version is not None
    found = await plane.services.publisher.newer_than(answer.version - 1, 10)
    assert found is not None
    return found.snapshot


async def test_a_pool_holds_models_and_single_backends(plane: ControlPlane) -> None:
    backend = await stocked(plane)
    members = [{"provider_model": "qwen"}, {"backend_id": backend, "weight": 2}]
    made = await add(plane, policy="least-loaded", members=members)
    assert made.json["members"] == [
        {
            "provider_model": "qwen",
            "backend_id": None,
            "provider": None,
            "upstream_model": None,
            "weight": 1,
            "resolved": True,
        },
        {
            "provider_model": "llama",
            "backend_id": backend,
            "provider": "gpu-1",
            "upstream_model": "llama",
            "weight": 2,
            "resolved": True,
        },
    ]
    for reference in ("local", made.json["id"]):
        assert (await plane.call("GET", f"/admin/pools/{reference}")).json == made.json
    assert (await plane.call("GET", f"/admin/pools?member={backend}")).rows == [made.json]
    assert (await plane.call("GET", "/admin/pools?member=qwen")).rows == [made.json]
    assert (await plane.call("GET", "/admin/pools?member=llama")).rows == []
    entry = (await published(plane, made)).pools[0]
    assert [member.weight for member in entry.members] == [1, 2]


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ([{}], "members[0]"),
        ([{"provider_model": "qwen", "backend_id": "{backend}"}], "members[0]"),
        ([{"provider_model": "nobody"}], "members[0].provider_model"),
        ([{"backend_id": "00000000-0000-7000-8000-000000000000"}], "members[0].backend_id"),
        ([{"provider_model": "qwen"}, {"provider_model": "qwen", "weight": 2}], "members[1]"),
        ([{"provider_model": "qwen", "weight": 0}], "members[0].weight"),
    ],
)
async def test_what_cannot_be_a_member_is_named(
    plane: ControlPlane, members: list[dict[str, Any]], field: str
) -> None:
    backend = await stocked(plane)
    filled = [
        {name: backend if value == "{backend}" else value for name, value in m.items()} for m in members
    ]
    refused = await plane.call("POST", "/admin/pools", {"name": "local", "members": filled})
    assert (refused.status, refused.error["field"]) == (400, field)
    assert (await plane.call("GET", "/admin/pools")).rows == []


async def test_pools_and_provider_models_share_their_names(plane: ControlPlane) -> None:
    await stocked(plane)
    refused = await plane.call("POST", "/admin/pools", {"name": "qwen"})
    assert (refused.status, refused.error["field"]) == (409, "name")
    await add(plane)
    assert (await plane.call("POST", "/admin/provider-models", {"name": "local"})).status == 409
    assert (await plane.call("PATCH", "/admin/pools/local", {"name": "qwen"})).status == 409


async def test_what_changes_nothing_makes_no_version(plane: ControlPlane) -> None:
    await stocked(plane)
    await add(plane, members=[{"provider_model": "qwen"}])
    same = {"name": "local", "policy": "cache-affinity", "members": [{"provider_model": "qwen"}]}
    assert (await plane.call("PATCH", "/admin/pools/local", same)).version is None


async def test_targets_follow_a_new_name(plane: ControlPlane) -> None:
    await add(plane)
    frontend = {"name": "assistant", "targets": [{"target": "local"}]}
    assert (await plane.call("POST", "/admin/frontend-models", frontend)).status == 201
    assert (await plane.call("PATCH", "/admin/pools/local", {"name": "site/a"})).status == 200
    shown = await plane.call("GET", "/admin/frontend-models/assistant")
    assert shown.json["targets"] == [{"target": "site/a", "weight": 1, "resolved": True}]
    for path in ("site/a", quote("site/a", safe="")):
        assert (await plane.call("GET", f"/admin/pools/{path}")).status == 200


async def test_a_membership_outlives_its_model_and_counts_again_with_its_name(plane: ControlPlane) -> None:
    backend = await stocked(plane)
    await add(plane, members=[{"provider_model": "qwen"}, {"backend_id": backend}])
    for name in ("qwen", "llama"):
        assert (await plane.call("DELETE", f"/admin/provider-models/{name}")).status == 200
    (left,) = (await plane.call("GET", "/admin/pools/local")).json["members"]
    assert (left["provider_model"], left["resolved"]) == ("qwen", False)
    kept = await plane.call("PATCH", "/admin/pools/local", {"members": [{"provider_model": "qwen"}]})
    assert (kept.status, kept.version) == (200, None)
    served = [{"provider": "gpu-1", "upstream_model": "qwen"}]
    again = await plane.call("POST", "/admin/provider-models", {"name": "qwen", "backends": served})
    entry = (await published(plane, again)).pools[0]
    assert [member.backend_id for member in entry.members] == [again.json["backends"][0]["id"]]
    renamed = await plane.call("PATCH", "/admin/provider-models/qwen", {"name": "qwen-2"})
    assert len((await published(plane, renamed)).pools[0].members) == 1
