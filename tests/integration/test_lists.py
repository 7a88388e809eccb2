"""Lists as scripts and screens ask for them: filters, and pages that hold still while rows are added."""

from __future__ import annotations

import pytest

from tests.fakes.control_plane import ControlPlane

FILTERS = [
    ("principals?name_prefix=team", ["team-a", "team-b"]),
    ("principals?name_prefix=%25", []),
    ("principals?kind=user", ["root"]),
    ("principals?role=models", ["team-a"]),
    ("roles?name_prefix=mod", ["models"]),
    ("roles?principal=team-a", ["models"]),
    ("roles?resource=model/assistant", ["models"]),
    ("keys?principal=team-a&disabled=false", ["ci"]),
    ("keys?principal=team-b", []),
    ("keys?scope=invoke", ["ci"]),
    ("keys?prefix=nothing", []),
    ("providers?name_prefix=gpu", ["gpu-1", "gpu-2"]),
    ("providers?kind=static&state=draining", ["gpu-2"]),
    ("providers?condition=ok&owner=nobody", []),
    ("provider-models?provider=gpu-1", ["qwen"]),
    ("provider-models?name_prefix=l", ["llama"]),
    ("pools?member=qwen", ["local"]),
    ("pools?member=llama", []),
    ("frontend-models?target=local", ["assistant"]),
    ("frontend-models?target=llama", ["assistant"]),
    ("frontend-models?target=none", []),
    ("frontend-models?name_prefix=b", ["batch"]),
    ("sessions?principal=team-a", []),
]


async def stocked(plane: ControlPlane) -> None:
    for method, path, body in (
        ("POST", "principals", {"name": "team-a"}),
        ("POST", "principals", {"name": "team-b"}),
        ("POST", "roles", {"name": "models"}),
        ("POST", "roles/models/permissions", {"verb": "model:invoke", "resource": "model/assistant"}),
        ("POST", "principals/team-a/roles", {"role": "models"}),
        ("POST", "keys", {"principal_id": "team-a", "name": "ci"}),
        ("POST", "providers?force=true", {"name": "gpu-1", "api_base": "http://127.0.0.1:9/a"}),
        ("POST", "providers?force=true", {"name": "gpu-2", "api_base": "http://127.0.0.1:9/b"}),
        ("PATCH", "providers/gpu-2", {"state": "draining"}),
        (
            "POST",
            "provider-models",
            {"name": "qwen", "backends": [{"provider": "gpu-1", "upstream_model": "q"}]},
        ),
        ("POST", "provider-models", {"name": "llama"}),
        ("POST", "pools", {"name": "local", "members": [{"provider_model": "qwen"}]}),
        ("POST", "frontend-models", {"name": "assistant", "targets": [{"target": "local"}]}),
        ("POST", "frontend-models/assistant/rules", {"targets": [{"target": "llama"}]}),
        ("POST", "frontend-models", {"name": "batch"}),
    ):
        answer = await plane.call(method, f"/admin/{path}", body)
        assert answer.status < 300, (path, answer.body)


async def test_filters(database_url: str) -> None:
    async with ControlPlane.start(database_url) as plane:
        await stocked(plane)
        for path, names in FILTERS:
            rows = (await plane.call("GET", f"/admin/{path}")).rows
            assert [row["name"] for row in rows] == names, path
        model = (await plane.call("GET", "/admin/provider-models/qwen")).json["id"]
        assert len((await plane.call("GET", f"/admin/pools?member={model}")).rows) == 1
        (mine,) = (await plane.call("GET", "/admin/keys?scope=admin")).rows
        found = (await plane.call("GET", f"/admin/keys?prefix={mine['prefix']}")).rows
        assert [row["id"] for row in found] == [mine["id"]]


LISTS = ("principals", "roles", "providers", "provider-models", "pools", "frontend-models")


@pytest.mark.parametrize("collection", LISTS)
async def test_pages_neither_skip_nor_repeat_while_rows_are_added(database_url: str, collection: str) -> None:
    async with ControlPlane.start(database_url) as plane:

        async def add(name: str) -> None:
            more = {"api_base": "http://127.0.0.1:9/v1"} if collection == "providers" else {}
            body = {"name": name, **more}
            path = f"/admin/{collection}" + ("?force=true" if collection == "providers" else "")
            assert (await plane.call("POST", path, body)).status == 201

        for number in range(3):
            await add(f"x-{number}")
        seen: list[str] = []
        after = ""
        for added in range(10):
            page = await plane.call("GET", f"/admin/{collection}?limit=2{after}")
            seen += [row["name"] for row in page.rows]
            if page.json["next"] is None:
                break
            after = f"&after={page.json['next']}"
            if added < 2:
                await add(f"y-{added}")
        ours = [name for name in seen if name[:2] in ("x-", "y-")]
        assert ours == ["x-0", "x-1", "x-2", "y-0", "y-1"][: len(ours)]
        assert len(ours) >= 4
        for wrong in ("after=x", "limit=0", "limit=1001"):
            refused = await plane.call("GET", f"/admin/{collection}?{wrong}")
            assert (refused.status, refused.error["field"]) == (400, wrong.partition("=")[0])
