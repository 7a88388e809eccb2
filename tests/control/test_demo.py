from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from fastllm_control.demo import FRONTEND_MODEL, PROVIDER, AdminApi, DemoError, register
from fastllm_control.demo_engine import MODEL
from fastllm_control.ready_file import Login
from tests.fakes.control_plane import PASSWORD, ControlPlane
from tests.fakes.engine import FakeEngine

LOGIN = Login("root", PASSWORD)
KEY = "engine-key"


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with FakeEngine.start(models=(MODEL,), api_key=KEY) as one:
        yield one


async def rows(plane: ControlPlane, kind: str) -> list[dict[str, Any]]:
    return (await plane.call("GET", f"/admin/{kind}")).rows


async def test_the_engine_becomes_a_frontend_model(plane: ControlPlane, engine: FakeEngine) -> None:
    version = await register(plane.url, LOGIN, engine.url, KEY)
    assert version > 0
    (provider,) = await rows(plane, "providers")
    assert (provider["name"], provider["kind"], provider["protocol"]) == (PROVIDER, "static", "both")
    assert (provider["api_base"], provider["has_credential"]) == (engine.url, True)
    (model,) = await rows(plane, "provider-models")
    assert [(one["provider"], one["upstream_model"]) for one in model["backends"]] == [(PROVIDER, MODEL)]
    (frontend,) = await rows(plane, "frontend-models")
    assert (frontend["name"], frontend["targets"][0]["resolved"]) == (FRONTEND_MODEL, True)
    assert engine.requests[0].header("authorization") == f"Bearer {KEY}", "it was dialled with its key"


async def test_doing_it_again_changes_nothing(plane: ControlPlane, engine: FakeEngine) -> None:
    await register(plane.url, LOGIN, engine.url, KEY)
    before = [await rows(plane, kind) for kind in ("providers", "provider-models", "frontend-models")]
    assert await register(plane.url, LOGIN, engine.url, KEY) == 0
    assert [await rows(plane, kind) for kind in ("providers", "provider-models", "frontend-models")] == before


async def test_an_engine_on_another_port_is_found_there(plane: ControlPlane, engine: FakeEngine) -> None:
    await register(plane.url, LOGIN, engine.url, KEY)
    async with FakeEngine.start(models=(MODEL,), api_key=KEY) as moved:
        assert await register(plane.url, LOGIN, moved.url, KEY) > 0
        (provider,) = await rows(plane, "providers")
        assert provider["api_base"] == moved.url


async def test_what_was_deleted_is_made_again(plane: ControlPlane, engine: FakeEngine) -> None:
    await register(plane.url, LOGIN, engine.url, KEY)
    assert (await plane.call("DELETE", f"/admin/providers/{PROVIDER}?force=true")).status == 200
    assert await register(plane.url, LOGIN, engine.url, KEY) > 0
    (model,) = await rows(plane, "provider-models")
    assert [one["provider"] for one in model["backends"]] == [PROVIDER]
    (frontend,) = await rows(plane, "frontend-models")
    assert frontend["targets"][0]["resolved"]


async def test_no_session_is_left_behind(plane: ControlPlane, engine: FakeEngine) -> None:
    await register(plane.url, LOGIN, engine.url, KEY)
    assert await rows(plane, "sessions") == []


async def test_a_wrong_password_is_said(plane: ControlPlane, engine: FakeEngine) -> None:
    with pytest.raises(DemoError, match="POST /login answered 401"):
        await register(plane.url, Login("root", "wrong"), engine.url, KEY)


async def test_a_refused_step_is_named_with_its_reason(plane: ControlPlane) -> None:
    with pytest.raises(DemoError, match=r"POST /admin/providers answered 400: .*provider_unreachable"):
        await register(plane.url, LOGIN, "http://127.0.0.1:9/v1", KEY)


async def test_a_name_is_found_on_a_later_page(plane: ControlPlane) -> None:
    for number in range(101):
        await plane.call("POST", "/admin/roles", {"name": f"role-{number:03}"})
    async with AdminApi(plane.url, LOGIN) as api:
        found = await api.find("/admin/roles", "role-100")
        assert found is not None
        assert found["name"] == "role-100"
        assert await api.find("/admin/roles", "role-101") is None
