"""Rules and the fallback over the API."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from fastllm_shared.ids import uuid7
from fastllm_shared.snapshot import Conditions
from tests.fakes.control_plane import Answer, ControlPlane

RULES = "/admin/frontend-models/assistant/rules"
FALLBACK = "/admin/fallback-model"


async def add(plane: ControlPlane, name: str = "assistant", **more: Any) -> None:
    assert (await plane.call("POST", "/admin/frontend-models", {"name": name, **more})).status == 201


async def rule(plane: ControlPlane, path: str = RULES, **body: Any) -> Answer:
    made = await plane.call("POST", path, body)
    assert made.status == 201, made.body
    return made


async def published(plane: ControlPlane, version: int | None) -> Any:
    assert version is not None
    found = await plane.services.publisher.newer_than(version - 1, 10)
    assert found is not None
    return found.snapshot


async def test_the_worked_session(plane: ControlPlane) -> None:
    await add(plane)
    batch = {"stream": False, "headers": {"x-tier": "batch"}}
    first = await rule(
        plane, position=0, when=batch, action="route", targets=[{"target": "cheap"}], tag="batch"
    )
    second = await rule(
        plane,
        position=1,
        when={"min_prompt_tokens": 200000},
        action="deny",
        deny_status=413,
        deny_message="too long",
    )
    rows = (await plane.call("GET", RULES)).rows
    assert rows == [first.json, second.json]
    assert (rows[0]["when"], rows[0]["targets"]) == (
        batch,
        [{"target": "cheap", "weight": 1, "resolved": False}],
    )
    assert [row["position"] for row in rows] == [0, 1]
    for row in rows:
        assert (await plane.call("GET", f"/admin/rules/{row['id']}")).json == row
    entries = (await published(plane, second.version)).frontend_models[0].rules
    assert entries[0].when == Conditions(stream=False, headers={"x-tier": "batch"})
    assert (entries[1].action, entries[1].deny_status, entries[1].deny_message) == ("deny", 413, "too long")
    shown = await plane.call("GET", "/admin/frontend-models/assistant")
    assert shown.json["rule_count"] == 2
    page = await plane.call("GET", f"{RULES}?limit=1")
    assert page.rows == [first.json]
    assert (await plane.call("GET", f"{RULES}?limit=1&after={page.json['next']}")).rows == [second.json]


A = [{"target": "a"}]
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"targets": [{"target": "a"}, {"target": "a"}]}, "targets[1].target"),
    ({"targets": A, "position": -1}, "position"),
    ({"targets": A, "position": 1000}, "position"),
    ({"targets": A, "colour": 1}, "colour"),
    ({"targets": A, "policy": "fastest"}, "policy"),
    ({"targets": A, "tag": ""}, "tag"),
    ({"targets": A, "tag": "a\nb"}, "tag"),
    ({"targets": A, "action": "send"}, "action"),
    ({"targets": A, "when": None}, "when"),
    ({"targets": A, "when": {"colour": 1}}, "when.colour"),
    ({"targets": A, "when": {"min_prompt_tokens": "5"}}, "when.min_prompt_tokens"),
    ({"targets": A, "when": {"min_prompt_tokens": -1}}, "when.min_prompt_tokens"),
    ({"targets": A, "when": {"min_prompt_tokens": 5, "max_prompt_tokens": 4}}, "when.min_prompt_tokens"),
    ({"targets": A, "when": {"after": "24:00"}}, "when.after"),
    ({"targets": A, "when": {"after": "8:00"}}, "when.after"),
    ({"targets": A, "when": {"days": ["monday"]}}, "when.days[0]"),
    ({"targets": A, "when": {"days": ["mon", "mon"]}}, "when.days"),
    ({"targets": A, "when": {"days": ["mon"], "timezone": "Nowhere/Zone"}}, "when.timezone"),
    ({"targets": A, "when": {"timezone": "Europe/Brussels"}}, "when.timezone"),
    ({"targets": A, "when": {"principals": []}}, "when.principals"),
    ({"targets": A, "when": {"headers": {"X-A": "1", "x-a": "2"}}}, "when.headers"),
    ({"targets": A, "when": {"stream": "yes"}}, "when.stream"),
    ({"targets": A, "deny_status": 403}, "deny_status"),
    ({"action": "deny"}, "deny_status"),
    ({"action": "deny", "deny_status": 503}, "deny_status"),
    ({"action": "deny", "deny_status": 399}, "deny_status"),
    ({"action": "deny", "deny_status": 403, "targets": A}, "targets"),
    ({"action": "deny", "deny_status": 403, "deny_message": ""}, "deny_message"),
    ({"action": "jump"}, "jump"),
    ({"action": "jump", "jump": "nothing"}, "jump"),
    ({"action": "jump", "jump": "assistant"}, "jump"),
]


async def test_what_is_wrong_is_named_and_leaves_nothing(plane: ControlPlane) -> None:
    await add(plane)
    audited = len((await plane.call("GET", "/admin/audit")).rows)
    for body, field in WRONG:
        answer = await plane.call("POST", RULES, body)
        assert (answer.status, answer.error["field"]) == (400, field), body
        if "position" not in body:
            answer = await plane.call("PUT", RULES, {"rules": [body]})
            assert (answer.status, answer.error["field"]) == (400, f"rules[0].{field}"), body
    assert (await plane.call("GET", RULES)).rows == []
    assert len((await plane.call("GET", "/admin/audit")).rows) == audited


async def test_a_rule_is_changed_moved_and_deleted(plane: ControlPlane) -> None:
    await add(plane)
    await add(plane, "other")
    ids = [(await rule(plane, targets=A, tag=str(at))).json["id"] for at in range(3)]
    path = f"/admin/rules/{ids[2]}"
    moved = await plane.call("PATCH", path, {"position": 0, "when": {"stream": True}})
    assert (moved.json["position"], moved.json["when"]) == (0, {"stream": True})
    assert [row["id"] for row in (await plane.call("GET", RULES)).rows] == [ids[2], ids[0], ids[1]]
    assert (await plane.call("PATCH", path, {"position": 0})).version is None
    jumps = await plane.call("PATCH", path, {"action": "jump", "jump": "other", "tag": None})
    assert (jumps.json["jump"], jumps.json["targets"], jumps.json["tag"]) == ("other", [], None)
    assert jumps.json["jump_resolved"] is True
    loop = await plane.call(
        "POST", "/admin/frontend-models/other/rules", {"action": "jump", "jump": "assistant"}
    )
    assert (loop.status, loop.error["code"], loop.error["field"]) == (400, "jump_loop", "jump")
    assert "other → assistant → other" in loop.error["message"]
    await plane.call("DELETE", "/admin/frontend-models/other")
    assert (await plane.call("GET", path)).json["jump_resolved"] is False
    assert (await plane.call("PATCH", path, {"tag": "still"})).status == 200
    gone = await plane.call("DELETE", path)
    assert (gone.json, gone.version is None) == ({"deleted": True}, False)
    assert (await plane.call("DELETE", path)).status == 404
    rows = (await plane.call("GET", RULES)).rows
    assert [(row["id"], row["position"]) for row in rows] == [(ids[0], 0), (ids[1], 1)]
    for missing in ("assistant", str(uuid7())):
        for method, body in (("GET", None), ("PATCH", {}), ("DELETE", None)):
            assert (await plane.call(method, f"/admin/rules/{missing}", body)).status == 404


async def test_the_list_is_replaced_bare_or_wrapped(plane: ControlPlane) -> None:
    await add(plane)
    wanted = [{"targets": A, "when": {"stream": True}}, {"action": "deny", "deny_status": 429, "tag": "t"}]
    put = await plane.call("PUT", RULES, wanted)
    assert [row["action"] for row in put.rows] == ["route", "deny"]
    assert put.rows == (await plane.call("GET", RULES)).rows
    assert (await plane.call("PUT", RULES, {"rules": wanted})).version is None
    emptied = await plane.call("PUT", RULES, [])
    assert (emptied.rows, emptied.version is None) == ([], False)
    assert (await plane.call("PUT", "/admin/frontend-models/none/rules", [])).status == 404


async def test_one_audit_event_a_write(plane: ControlPlane) -> None:
    await add(plane)
    made = await rule(plane, targets=A)
    path = f"/admin/rules/{made.json['id']}"
    for method, target, body, action in (
        ("POST", RULES, {"targets": A, "position": 0}, "rule.create"),
        ("PATCH", path, {"position": 0, "tag": "x"}, "rule.update"),
        ("DELETE", path, None, "rule.delete"),
        ("PUT", RULES, [], "frontend_model.set_rules"),
        ("PUT", FALLBACK, {"frontend_model": "assistant"}, "fallback_model.set"),
    ):
        before = (await plane.call("GET", "/admin/audit?limit=1")).rows[0]["id"]
        answer = await plane.call(method, target, body)
        assert answer.version is not None, answer.body
        newest, other = (await plane.call("GET", "/admin/audit?limit=2")).rows
        assert (newest["action"], other["id"]) == (action, before)


async def test_names_in_conditions_follow_a_rename(plane: ControlPlane) -> None:
    await add(plane)
    await plane.role("ops")
    await plane.principal("ann")
    when = {"principals": ["ann", "bob"], "roles": ["ops"]}
    made = await rule(plane, when=when, targets=A)
    await plane.call("PATCH", "/admin/principals/ann", {"name": "anna"})
    await plane.call("PATCH", "/admin/roles/ops", {"name": "crew"})
    path = f"/admin/rules/{made.json['id']}"
    assert (await plane.call("GET", path)).json["when"] == {"principals": ["anna", "bob"], "roles": ["crew"]}
    await plane.call("DELETE", "/admin/principals/anna")
    assert (await plane.call("GET", path)).json["when"]["principals"] == ["anna", "bob"]


async def test_the_fallback(plane: ControlPlane) -> None:
    await add(plane, "a/b")
    assert (await plane.call("GET", FALLBACK)).json == {"frontend_model": None, "resolved": None}
    put = await plane.call("PUT", FALLBACK, {"frontend_model": "a/b"})
    assert put.json == {"frontend_model": "a/b", "resolved": True}
    assert (await published(plane, put.version)).fallback_model == "a/b"
    refused = await plane.call("PUT", FALLBACK, {"frontend_model": "none"})
    assert (refused.status, refused.error["field"]) == (400, "frontend_model")
    await plane.call("DELETE", "/admin/frontend-models/a%2Fb")
    assert (await plane.call("GET", FALLBACK)).json == {"frontend_model": "a/b", "resolved": False}
    for _ in range(2):
        cleared = await plane.call("PUT", FALLBACK, raw=msgspec.json.encode(None))
        assert cleared.json == {"frontend_model": None, "resolved": None}
    assert cleared.version is None


async def test_many_at_once(plane: ControlPlane) -> None:
    await add(plane)
    answers = await asyncio.gather(
        *(plane.call("POST", RULES, {"targets": A, "position": at % 4, "tag": str(at)}) for at in range(16))
    )
    assert [answer.status for answer in answers] == [201] * 16
    rows = (await plane.call("GET", RULES)).rows
    assert [row["position"] for row in rows] == list(range(16))
    assert {row["tag"] for row in rows} == {str(at) for at in range(16)}
    entries = (await published(plane, max(answer.version or 0 for answer in answers))).frontend_models[0]
    assert [entry.position for entry in entries.rules] == list(range(16))
