"""`GET /admin/export`, `POST /admin/apply`."""

from __future__ import annotations

import pytest

from fastllm_control.declared.text import read
from tests.fakes.control_plane import ControlPlane
from tests.fakes.declared import CLOSED

TEXT = f"""\
format: 1
providers:
- name: gpu-1
  api_base: {CLOSED}
  upstream_api_key: {{env: FASTLLM_ENCRYPTION_KEY}}
provider_models:
- name: qwen
  backends: [{{provider: gpu-1, upstream_model: Q}}]
"""
GIVEN = {"FASTLLM_ENCRYPTION_KEY": "canary"}


async def test_the_plan_and_the_version_come_back(plane: ControlPlane) -> None:
    tried = await plane.call("POST", "/admin/apply", {"text": TEXT, "credentials": GIVEN, "dry_run": True})
    assert (tried.status, tried.version, tried.json["version"]) == (200, None, None)
    done = await plane.call("POST", "/admin/apply", {"text": TEXT, "credentials": GIVEN})
    assert (done.status, done.json["dry_run"]) == (200, False)
    assert done.version == done.json["version"] is not None
    assert done.json["steps"] == tried.json["steps"]
    assert [(step["action"], step["kind"], step["name"]) for step in done.json["steps"]] == [
        ("create", "provider", "gpu-1"),
        ("create", "provider_model", "qwen"),
    ]
    assert done.json["printed"].startswith("+ provider gpu-1\n+ provider model qwen\n! ")
    again = await plane.call("POST", "/admin/apply", {"text": TEXT, "prune": True})
    assert (again.status, again.json["steps"], again.version) == (200, [], None)
    assert again.json["warnings"] == [
        "the environment variable FASTLLM_ENCRYPTION_KEY is not set:"
        " the credential of gpu-1 stays as it is stored"
    ]
    events = await plane.call("GET", "/admin/audit")
    assert "canary" not in (done.body + again.body + events.body).decode()


async def test_what_is_exported_is_applied_again_in_either_form(plane: ControlPlane) -> None:
    await plane.call("POST", "/admin/apply", {"text": TEXT, "credentials": GIVEN})
    exported = await plane.call("GET", "/admin/export")
    assert exported.headers["content-type"].startswith("application/yaml")
    as_text = await plane.call("POST", "/admin/apply", {"text": exported.body.decode(), "prune": True})
    assert (as_text.status, as_text.json["steps"]) == (200, [])
    accepting = {"accept": "application/json"}
    for path, headers in (("/admin/export?format=json", {}), ("/admin/export", accepting)):
        answer = await plane.call("GET", path, headers=headers)
        assert answer.headers["content-type"] == "application/json"
        assert read(answer.body).document == read(exported.body).document
        as_json = await plane.call("POST", "/admin/apply", {"document": answer.json, "prune": True})
        assert (as_json.status, as_json.json["steps"]) == (200, [])
    assert b"canary" not in exported.body + answer.body


async def test_references_are_never_looked_up_here(
    plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTLLM_ENCRYPTION_KEY", "canary-of-the-server")
    for reference in ("{env: FASTLLM_ENCRYPTION_KEY}", "{file: /etc/hostname}"):
        text = TEXT.replace("{env: FASTLLM_ENCRYPTION_KEY}", reference)
        answer = await plane.call("POST", "/admin/apply", {"text": text})
        assert (answer.status, answer.error["field"]) == (400, "providers[0].upstream_api_key")
        assert "is not set, and nothing is stored" in answer.error["message"]
        given = {"text": text, "credentials": {"/etc/hostname": "a", **GIVEN}, "dry_run": True}
        assert (await plane.call("POST", "/admin/apply", given)).status == 200


async def test_refusals_name_line_and_field(plane: ControlPlane) -> None:
    before = await plane.call("GET", "/admin/export")
    text = TEXT.replace("provider: gpu-1", "provider: gpu-2")
    answer = await plane.call("POST", "/admin/apply", {"text": text, "credentials": GIVEN})
    assert (answer.status, answer.error["field"]) == (400, "provider_models[0].backends[0].provider")
    assert answer.error["message"].startswith("line 8, provider_models[0].backends[0].provider: there is no")
    served = {"name": "m", "backends": [{"provider": "nobody", "upstream_model": "m"}]}
    document = {"format": 1, "provider_models": [served]}
    answer = await plane.call("POST", "/admin/apply", {"document": document})
    assert answer.status == 400
    assert answer.error["field"] == "document.provider_models[0].backends[0].provider"
    answer = await plane.call("POST", "/admin/apply", {"document": {"format": 1, "roles": [{"name": 5}]}})
    assert (answer.status, answer.error["field"]) == (400, "document.roles[0].name")
    for body in ({}, {"document": {"format": 1}, "text": "format: 1"}):
        answer = await plane.call("POST", "/admin/apply", body)
        assert (answer.status, answer.error["field"]) == (400, "document")
    assert (await plane.call("GET", "/admin/export")).body == before.body


async def test_it_takes_what_the_plan_touches_and_tells_strangers_nothing(plane: ControlPlane) -> None:
    await plane.principal("reader", "viewer")
    await plane.principal("operator-1", "operator")
    reader, operator = await plane.key_of("reader"), await plane.key_of("operator-1")
    broken = {"text": TEXT.replace("provider: gpu-1", "provider: gpu-2"), "credentials": GIVEN}
    answer = await plane.call("POST", "/admin/apply", broken, token=reader)
    assert (answer.status, answer.error["code"]) == (403, "forbidden")
    assert (await plane.call("POST", "/admin/apply", broken, token=operator)).status == 400
    roles = {"text": TEXT + "roles:\n- name: x\n", "credentials": GIVEN}
    answer = await plane.call("POST", "/admin/apply", roles, token=operator)
    assert (answer.status, answer.error["code"]) == (403, "forbidden")
    assert "access:write" in answer.error["message"]
    routes = {"text": TEXT, "credentials": GIVEN}
    assert (await plane.call("POST", "/admin/apply", routes, token=operator)).status == 200
    assert (await plane.call("GET", "/admin/export", token=reader)).status == 200


async def test_a_large_file_is_taken_and_a_huge_one_is_not(plane: ControlPlane) -> None:
    models = "".join(f"- name: model-{number}\n" for number in range(200))
    large = "format: 1\nprovider_models:\n" + models + "#" * 3_000_000
    answer = await plane.call("POST", "/admin/apply", {"text": large})
    assert (answer.status, len(answer.json["steps"])) == (200, 200)
    answer = await plane.call("POST", "/admin/apply", {"text": "#" * (8 * 1024 * 1024 + 1)})
    assert (answer.status, answer.error["field"]) == (400, "text")
