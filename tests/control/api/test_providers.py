"""Providers over the API, against engines on real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy import text

from fastllm_shared.ids import uuid7
from tests.fakes.certificates import Authority
from tests.fakes.control_plane import PROXY_TOKEN, Answer, ControlPlane
from tests.fakes.engine import Answer as EngineAnswer
from tests.fakes.engine import FakeEngine

CANARY = "sk-canary-4711"


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with FakeEngine.start(models=("fake-model", "org/other")) as started:
        yield started


async def add(plane: ControlPlane, engine: FakeEngine, name: str = "gpu-1", **more: Any) -> Answer:
    answer = await plane.call("POST", "/admin/providers", {"name": name, "api_base": engine.url, **more})
    assert answer.status == 201, answer.body
    return answer


async def serve(plane: ControlPlane, provider: str, model: str = "qwen") -> None:
    body = {"name": model, "backends": [{"provider": provider, "upstream_model": "fake-model"}]}
    assert (await plane.call("POST", "/admin/provider-models", body)).status == 201


async def newest_audit(plane: ControlPlane) -> dict[str, Any]:
    rows: list[dict[str, Any]] = (await plane.call("GET", "/admin/audit?limit=1")).rows
    return rows[0]


async def published(plane: ControlPlane, version: int | None) -> Any:
    assert version is not None
    found = await plane.services.publisher.newer_than(version - 1, 10)
    assert found is not None
    return found.snapshot


def unheard_port() -> tuple[socket.socket, int]:
    """A port on which nobody listens, for as long as the socket is open."""
    held = socket.socket()
    held.bind(("127.0.0.1", 0))
    return held, held.getsockname()[1]


async def test_a_provider_is_dialled_with_its_credential_and_stored(
    plane: ControlPlane, engine: FakeEngine
) -> None:
    made = await add(plane, engine, upstream_api_key=CANARY, protocol="both", kind="static")
    row = made.json
    expected: dict[str, Any] = {"name": "gpu-1", "kind": "static", "api_base": engine.url, "protocol": "both"}
    expected |= {"state": "active", "condition": "ok", "reason": None, "has_credential": True}
    expected |= {"node": None, "engine": None, "owner": None, "lease_expires_at": None, "drift": None}
    assert expected.items() <= row.items()
    assert engine.requests[0].header("authorization") == f"Bearer {CANARY}"
    for path in ("gpu-1", row["id"]):
        assert (await plane.call("GET", f"/admin/providers/{path}")).json == row
    entry = (await published(plane, made.version)).providers[0]
    assert (entry.id, entry.name, entry.credential) == (row["id"], "gpu-1", CANARY)
    assert (entry.protocol, entry.auth_header, entry.auth_scheme) == ("both", "authorization", None)


async def test_nothing_that_is_secret_comes_back_or_is_stored_plainly(
    plane: ControlPlane, engine: FakeEngine
) -> None:
    headers = {"x-secret": CANARY}
    made = await add(plane, engine, upstream_api_key=CANARY, extra_headers=headers)
    changed = await plane.call("PATCH", "/admin/providers/gpu-1", {"upstream_api_key": CANARY + "-2"})
    assert (made.json["extra_headers"], changed.json["has_credential"]) == (["x-secret"], True)
    seen = [made.body, changed.body]
    paths = ("/admin/providers", "/admin/providers/gpu-1", "/admin/audit", "/admin/snapshots", "/metrics")
    seen += [(await plane.call("GET", path)).body for path in paths]
    seen.append((await plane.call("POST", "/admin/providers/gpu-1/probe")).body)
    seen.append(repr(plane.log.entries).encode())
    async with plane.services.database.engine.connect() as connection:
        for table in ("providers", "audit_events"):
            stored = await connection.execute(text(f"SELECT * FROM {table}"))
            seen.append(repr(stored.all()).encode())
    assert [body for body in seen if CANARY.encode() in body] == []
    entry = (await published(plane, changed.version)).providers[0]
    assert (entry.credential, entry.extra_headers) == (CANARY + "-2", (("x-secret", CANARY),))


async def test_refusals_never_repeat_a_credential(plane: ControlPlane) -> None:
    for body in (
        {"name": "a", "api_base": "http://127.0.0.1:9/v1", "upstream_api_key": f"{CANARY}\n"},
        {"name": "a", "api_base": "http://127.0.0.1:9/v1", "upstream_api_key": CANARY},
        {"name": "a", "api_base": f"http://u:{CANARY}@gpu/v1"},
    ):
        answer = await plane.call("POST", "/admin/providers", body)
        assert answer.status == 400
        assert CANARY.encode() not in answer.body


async def test_one_that_does_not_answer_is_refused_unless_forced(plane: ControlPlane) -> None:
    held, port = unheard_port()
    with held:
        body = {"name": "gpu-1", "api_base": f"http://127.0.0.1:{port}/v1"}
        refused = await plane.call("POST", "/admin/providers", body)
        assert (refused.status, refused.error["code"]) == (400, "provider_unreachable")
        assert refused.error["field"] == "api_base"
        assert "the connection is refused" in refused.error["message"]
        assert (await plane.call("GET", "/admin/providers/gpu-1")).status == 404
        forced = await plane.call("POST", "/admin/providers?force=true", body)
        assert forced.status == 201
        assert (forced.json["condition"], forced.json["reason"]) == (
            "unreachable",
            "the connection is refused",
        )
        assert (await plane.call("POST", "/admin/providers?force=maybe", body)).error["field"] == "force"


async def test_an_unwell_one_is_refused_too(plane: ControlPlane, engine: FakeEngine) -> None:
    for status in (500, 503, 302):
        engine.script("/models", EngineAnswer(status=status))
        answer = await plane.call("POST", "/admin/providers", {"name": "g", "api_base": engine.url})
        assert (answer.status, answer.error["code"]) == (400, "provider_unreachable")
        assert str(status) in answer.error["message"]


async def test_one_that_wants_another_credential_is_stored_and_says_so(
    plane: ControlPlane, engine: FakeEngine
) -> None:
    engine.script("/models", EngineAnswer(status=401))
    made = await add(plane, engine)
    assert made.json["condition"] == "needs_credential"
    assert "401" in made.json["reason"]


FORBIDDEN = [
    "http://169.254.169.254/latest",
    "http://[::ffff:a9fe:a9fe]/",
    "http://2852039166/",
    "http://metadata.google.internal/",
    "http://127.0.0.1:4000/v1",
    "ftp://gpu/v1",
    "gpu:8000",
    "http://gpu/v1#x",
    "http://gpu/v1?x=1",
    "http://u:p@gpu/v1",
    "http://<host>/v1",
    "http://gpu\u0000/v1",
]


async def test_forbidden_addresses_are_refused_force_or_not(plane: ControlPlane) -> None:
    for api_base in FORBIDDEN:
        for force in ("", "?force=true"):
            body = {"name": "g", "api_base": api_base}
            answer = await plane.call("POST", f"/admin/providers{force}", body)
            assert (answer.status, answer.error["field"]) == (400, "api_base"), api_base


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"name": ""}, "name"),
    ({"name": str(uuid7())}, "name"),
    ({"name": None}, "name"),
    ({"name": "a\u0007"}, "name"),
    ({"kind": "dynamic"}, "kind"),
    ({"kind": "cloud"}, "kind"),
    ({"kind": "gaseous"}, "kind"),
    ({"protocol": "grpc"}, "protocol"),
    ({"api_base": ""}, "api_base"),
    ({"api_base": 7}, "api_base"),
    ({"api_base": "http://" + "a" * 3000}, "api_base"),
    ({"upstream_api_key": ""}, "upstream_api_key"),
    ({"upstream_api_key": "a\r\nb: c"}, "upstream_api_key"),
    ({"upstream_api_key": "é"}, "upstream_api_key"),
    ({"auth_header": "a b"}, "auth_header"),
    ({"auth_header": "Host"}, "auth_header"),
    ({"auth_header": "content-length"}, "auth_header"),
    ({"auth_scheme": "a b"}, "auth_scheme"),
    ({"extra_headers": {"Transfer-Encoding": "chunked"}}, "extra_headers"),
    ({"extra_headers": {"x": "a\nb"}}, "extra_headers"),
    ({"extra_headers": {"Authorization": "x"}}, "extra_headers"),
    ({"extra_headers": []}, "extra_headers"),
    ({"stream_usage": "sometimes"}, "stream_usage"),
    ({"ca": "no certificate"}, "ca"),
    ({"server_name": "a b"}, "server_name"),
    ({"credential": "x"}, "credential"),
    ({"state": "off"}, "state"),
]


async def test_what_is_wrong_is_named(plane: ControlPlane) -> None:
    for changed, field in WRONG:
        body = {"name": "gpu-1", "api_base": "http://127.0.0.1:9/v1", **changed}
        answer = await plane.call("POST", "/admin/providers?force=true", body)
        assert answer.status == 400, changed
        assert (answer.error["field"] or "").startswith(field), changed


async def test_bodies_that_are_none(plane: ControlPlane, engine: FakeEngine) -> None:
    await add(plane, engine)
    for raw in (b"", b"{", b"[]", b"null", b'"x"', b"\xff", b'{"name":7}'):
        for method, path in (("POST", "/admin/providers"), ("PATCH", "/admin/providers/gpu-1")):
            assert (await plane.call(method, path, raw=raw)).status == 400, (method, raw)


async def test_names_are_unique(plane: ControlPlane, engine: FakeEngine) -> None:
    await add(plane, engine)
    again = await plane.call("POST", "/admin/providers", {"name": "gpu-1", "api_base": engine.url})
    assert (again.status, again.error["field"]) == (409, "name")
    await add(plane, engine, "gpu-2")  # the same address under another name is fine
    renamed = await plane.call("PATCH", "/admin/providers/gpu-2", {"name": "gpu-1"})
    assert (renamed.status, renamed.error["field"]) == (409, "name")


async def test_names_of_all_sorts_are_reached(plane: ControlPlane, engine: FakeEngine) -> None:
    for name in ("org/gpu", "a b", "ü", "50%", "x/probe", ".."):
        made = await add(plane, engine, name)
        path = f"/admin/providers/{quote(name, safe='')}"
        assert (await plane.call("GET", path)).json["id"] == made.json["id"]
        assert (await plane.call("POST", f"{path}/probe")).json["reachable"] is True


async def test_a_patch_changes_what_it_gives(plane: ControlPlane, engine: FakeEngine) -> None:
    await add(plane, engine, upstream_api_key=CANARY)
    patch = {"name": "gpu-9", "protocol": "both", "stream_usage": "never", "auth_scheme": ""}
    changed = await plane.call("PATCH", "/admin/providers/gpu-1", patch)
    assert changed.status == 200
    assert patch.items() <= changed.json.items()
    assert changed.json["has_credential"] is True
    audit = await newest_audit(plane)
    assert (audit["action"], audit["target_name"]) == ("provider.update", "gpu-9")
    assert audit["changes"]["name"] == {"before": "gpu-1", "after": "gpu-9"}
    assert "upstream_api_key" not in audit["changes"]
    entry = (await published(plane, changed.version)).providers[0]
    assert (entry.name, entry.protocol, entry.stream_usage, entry.auth_scheme) == (
        "gpu-9",
        "both",
        "never",
        "",
    )


async def test_a_patch_that_changes_nothing_makes_no_version(plane: ControlPlane, engine: FakeEngine) -> None:
    made = await add(plane, engine, upstream_api_key=CANARY, extra_headers={"x": "y"})
    before = await newest_audit(plane)
    for same in (
        {},
        {"name": "gpu-1"},
        {"upstream_api_key": CANARY},
        {"extra_headers": {"x": "y"}},
        {"state": "active", "kind": "static", "api_base": engine.url + "/"},
    ):
        answer = await plane.call("PATCH", "/admin/providers/gpu-1", same)
        assert (answer.status, answer.version) == (200, None), same
        assert answer.json == made.json
    assert await newest_audit(plane) == before


async def test_the_credential_is_set_cleared_and_audited_without_being_shown(
    plane: ControlPlane, engine: FakeEngine
) -> None:
    await add(plane, engine)
    trail = []
    for value in (CANARY, None):
        answer = await plane.call("PATCH", "/admin/providers/gpu-1", {"upstream_api_key": value})
        assert answer.json["has_credential"] is (value is not None)
        assert (await published(plane, answer.version)).providers[0].credential == value
        trail.append((await newest_audit(plane))["changes"]["upstream_api_key"])
    assert trail == [{"before": None, "after": "(set)"}, {"before": "(set)", "after": "(cleared)"}]


async def test_a_state_says_who_set_it_and_why(plane: ControlPlane, engine: FakeEngine) -> None:
    await add(plane, engine)
    await serve(plane, "gpu-1")
    body = {"state": "draining", "state_reason": "new driver"}
    drained = await plane.call("PATCH", "/admin/providers/gpu-1", body)
    assert body.items() <= drained.json.items()
    assert drained.json["state_by"] == "root"
    assert (await published(plane, drained.version)).backends[0].state == "draining"
    disabled = await plane.call("PATCH", "/admin/providers/gpu-1", {"state": "disabled"})
    assert disabled.json["state_reason"] is None
    assert (await published(plane, disabled.version)).backends == ()
    active = await plane.call("PATCH", "/admin/providers/gpu-1", {"state": "active"})
    assert (await published(plane, active.version)).backends[0].state == "active"
    why = await plane.call("PATCH", "/admin/providers/gpu-1", {"state_reason": "all is well"})
    assert (why.json["state_reason"], why.version) == ("all is well", None)


async def test_a_credential_does_not_follow_to_another_host(plane: ControlPlane, engine: FakeEngine) -> None:
    await add(plane, engine, upstream_api_key=CANARY)
    moved = await plane.call("PATCH", "/admin/providers/gpu-1", {"api_base": "http://127.0.0.1:9/v1"})
    assert (moved.status, moved.error["field"]) == (400, "upstream_api_key")
    deeper = await plane.call("PATCH", "/admin/providers/gpu-1", {"api_base": engine.url + "/deeper"})
    assert deeper.json["api_base"] == engine.url + "/deeper"
    both = {"api_base": "http://127.0.0.1:9/v1", "upstream_api_key": "another"}
    assert (await plane.call("PATCH", "/admin/providers/gpu-1", both)).status == 200
    refused = await plane.call("PATCH", "/admin/providers/gpu-1", {"api_base": "http://169.254.169.254/"})
    assert (refused.status, refused.error["field"]) == (400, "api_base")


async def test_handing_a_provider_to_its_agent_and_taking_it_back(
    plane: ControlPlane, engine: FakeEngine
) -> None:
    await add(plane, engine)
    await plane.principal("fleet", kind="service_account")
    owned = await plane.call("PATCH", "/admin/providers/gpu-1", {"owner": "fleet"})
    assert (owned.status, owned.error["field"]) == (409, "owner")
    handed = await plane.call("PATCH", "/admin/providers/gpu-1", {"kind": "dynamic", "owner": "fleet"})
    assert (handed.json["kind"], handed.json["owner"], handed.json["lease_expires_at"]) == (
        "dynamic",
        "fleet",
        None,
    )
    for patch, field in (({"name": "x"}, "name"), ({"api_base": "http://127.0.0.1:9/v1"}, "api_base")):
        refused = await plane.call("PATCH", "/admin/providers/gpu-1", patch)
        assert (refused.status, refused.error["field"]) == (409, field)
    assert (await plane.call("PATCH", "/admin/providers/gpu-1", {"owner": "nobody"})).error[
        "field"
    ] == "owner"
    assert (await plane.call("PATCH", "/admin/providers/gpu-1", {"kind": "cloud"})).status == 409
    back = await plane.call("PATCH", "/admin/providers/gpu-1", {"kind": "static"})
    assert (back.json["kind"], back.json["owner"]) == ("static", None)


async def test_one_that_serves_models_is_not_deleted_unawares(
    plane: ControlPlane, engine: FakeEngine
) -> None:
    await add(plane, engine, upstream_api_key=CANARY)
    await serve(plane, "gpu-1", "qwen")
    await serve(plane, "gpu-1", "bge/m3")
    refused = await plane.call("DELETE", "/admin/providers/gpu-1")
    assert (refused.status, refused.error["code"]) == (409, "provider_in_use")
    assert "bge/m3, qwen" in refused.error["message"]
    done = await plane.call("DELETE", "/admin/providers/gpu-1?force=true")
    assert (done.status, done.json) == (200, {"deleted": True})
    audit = await newest_audit(plane)
    assert audit["action"] == "provider.delete"
    assert audit["changes"]["upstream_api_key"] == {"before": "(set)", "after": "(cleared)"}
    assert audit["changes"]["provider_models"]["before"] == ["bge/m3", "qwen"]
    # The models stay, listed and unroutable.
    models = (await plane.call("GET", "/admin/provider-models")).rows
    assert [(model["name"], model["backends"]) for model in models] == [("qwen", []), ("bge/m3", [])]
    snapshot = await published(plane, done.version)
    assert (snapshot.providers, snapshot.backends, len(snapshot.provider_models)) == ((), (), 2)
    assert (await plane.call("DELETE", "/admin/providers/gpu-1")).status == 404


async def test_a_probe_finds_out_and_keeps_it(plane: ControlPlane, engine: FakeEngine) -> None:
    made = await add(plane, engine)
    found = await plane.call("POST", "/admin/providers/gpu-1/probe")
    assert found.json == {
        "reachable": True,
        "status": 200,
        "reason": None,
        "models": ["fake-model", "org/other"],
    }
    engine.script("/models", EngineAnswer(status=503))
    unwell = await plane.call("POST", "/admin/providers/gpu-1/probe")
    assert (unwell.status, unwell.json["reachable"], unwell.json["status"]) == (200, False, 503)
    assert unwell.version is None
    row = (await plane.call("GET", "/admin/providers/gpu-1")).json
    assert (row["condition"], row["reason"]) == ("unreachable", "answers 503")
    assert row["condition_at"] > made.json["condition_at"]
    # Advisory: what a person typed in stays in service.
    assert len((await published(plane, made.version)).providers) == 1


async def test_what_it_serves_beside_what_is_registered(plane: ControlPlane, engine: FakeEngine) -> None:
    await add(plane, engine)
    await serve(plane, "gpu-1")
    listed = await plane.call("GET", "/admin/providers/gpu-1/available-models")
    assert listed.rows == [
        {"id": "fake-model", "max_model_len": listed.rows[0]["max_model_len"], "provider_model": "qwen"},
        {"id": "org/other", "max_model_len": listed.rows[1]["max_model_len"], "provider_model": None},
    ]
    engine.script("/models", EngineAnswer(body=b"<html>"))
    refused = await plane.call("GET", "/admin/providers/gpu-1/available-models")
    assert (refused.status, refused.error["code"]) == (400, "provider_unreachable")


async def test_a_credential_that_cannot_be_read_is_said_and_can_be_set_again(
    database_url: str, engine: FakeEngine
) -> None:
    async with ControlPlane.start(database_url) as plane:
        await add(plane, engine, upstream_api_key=CANARY, extra_headers={"x": "y"})
        await serve(plane, "gpu-1")
    async with ControlPlane.start(
        database_url, settings={"encryption_key": "22" * 32}, admin="second"
    ) as plane:
        row = (await plane.call("GET", "/admin/providers/gpu-1")).json
        assert (row["has_credential"], row["extra_headers"]) == (True, None)
        probed = await plane.call("POST", "/admin/providers/gpu-1/probe")
        assert probed.json["reachable"] is False
        assert "cannot be read" in probed.json["reason"]
        rebuilt = await plane.call("POST", "/admin/snapshots/rebuild")
        assert [lost["name"] for lost in rebuilt.json["dropped"]] == ["gpu-1"]
        again = {"upstream_api_key": CANARY, "extra_headers": {"x": "y"}}
        mended = await plane.call("PATCH", "/admin/providers/gpu-1", again)
        assert len((await published(plane, mended.version)).backends) == 1


async def test_tls_of_a_private_authority(plane: ControlPlane, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with FakeEngine.start(tls=authority.server_context("engine.test")) as engine:
        body = {"name": "gpu-1", "api_base": engine.url}
        refused = await plane.call("POST", "/admin/providers", body)
        assert refused.error["code"] == "provider_unreachable"
        assert "certificate" in refused.error["message"]
        trusted = {**body, "ca": authority.pem, "server_name": "engine.test"}
        made = await plane.call("POST", "/admin/providers", trusted)
        assert made.status == 201
        entry = (await published(plane, made.version)).providers[0]
        assert (entry.ca, entry.server_name) == (authority.pem, "engine.test")


async def test_lists_are_paged_and_filtered(plane: ControlPlane, engine: FakeEngine) -> None:
    for number in range(4):
        await add(plane, engine, f"gpu-{number}")
    await plane.call("PATCH", "/admin/providers/gpu-2", {"state": "disabled"})
    first = await plane.call("GET", "/admin/providers?limit=3")
    assert [row["name"] for row in first.rows] == ["gpu-0", "gpu-1", "gpu-2"]
    second = await plane.call("GET", f"/admin/providers?limit=3&after={first.json['next']}")
    assert ([row["name"] for row in second.rows], second.json["next"]) == (["gpu-3"], None)
    for query, names in {
        "state=disabled": ["gpu-2"],
        "kind=dynamic": [],
        "condition=ok&limit=2": ["gpu-0", "gpu-1"],
    }.items():
        listed = await plane.call("GET", f"/admin/providers?{query}")
        assert [row["name"] for row in listed.rows] == names
    for query, field in {
        "limit=0": "limit",
        "after=x": "after",
        "kind=x": "kind",
        "colour=red": "colour",
    }.items():
        assert (await plane.call("GET", f"/admin/providers?{query}")).error["field"] == field


ROUTES = [
    ("GET", "/admin/providers"),
    ("POST", "/admin/providers"),
    ("GET", "/admin/providers/{id}"),
    ("PATCH", "/admin/providers/{id}"),
    ("DELETE", "/admin/providers/{id}"),
    ("POST", "/admin/providers/{id}/probe"),
    ("GET", "/admin/providers/{id}/available-models"),
]


async def test_who_may(plane: ControlPlane, engine: FakeEngine) -> None:
    await add(plane, engine)
    await plane.principal("reader", "viewer")
    reader = await plane.key_of("reader")
    hits = len(engine.requests)
    for method, route in ROUTES:
        path = route.format(id="gpu-1")
        assert (await plane.call(method, path, {}, token=None)).status == 401
        assert (await plane.call(method, path, {}, token=PROXY_TOKEN)).status == 403
        if method != "GET":
            assert (await plane.call(method, path, {}, token=reader)).status == 403
    assert len(engine.requests) == hits  # nobody was made to dial by one who may not
    assert (await plane.call("GET", "/admin/providers", token=reader)).status == 200


async def test_what_is_not_there(plane: ControlPlane) -> None:
    for reference in ("nothing", str(uuid7()), "a/b"):
        for method, route in ROUTES[2:]:
            body = {"name": "x"} if method == "PATCH" else None
            answer = await plane.call(method, route.format(id=reference), body)
            assert (answer.status, answer.error["code"]) == (404, "provider_not_found")


async def test_two_that_take_one_name_at_once(plane: ControlPlane, engine: FakeEngine) -> None:
    body = {"name": "gpu-1", "api_base": engine.url}
    answers = await asyncio.gather(*(plane.call("POST", "/admin/providers", body) for _ in range(6)))
    assert sorted(answer.status for answer in answers) == [201, *[409] * 5]
