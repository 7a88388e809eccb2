"""API keys over the API."""

from __future__ import annotations

import datetime
from typing import Any
from uuid import uuid4

import pytest

from fastllm_shared.keys import digest_of
from tests.fakes.control_plane import ControlPlane


async def create(plane: ControlPlane, principal: str = "team-a", **fields: Any) -> dict[str, Any]:
    answer = await plane.call("POST", "/admin/keys", {"principal_id": principal, "name": "ci", **fields})
    assert answer.status == 201, answer.body
    return dict(answer.json)


async def row(plane: ControlPlane, key_id: str) -> dict[str, Any]:
    return dict((await plane.call("GET", f"/admin/keys/{key_id}")).json)


async def test_a_key_is_shown_once(plane: ControlPlane) -> None:
    principal = await plane.principal("team-a")
    answer = await plane.call(
        "POST",
        "/admin/keys",
        {"principal_id": principal, "name": "ci", "expires_at": "2127-01-01T00:00:00Z", "scope": "invoke"},
    )
    assert answer.status == 201
    assert answer.version is not None
    made = answer.json
    assert made["key"].startswith("sk-")
    assert len(made["key"]) >= 46
    assert made["prefix"] == made["key"][: len(made["prefix"])]
    listed = await plane.call("GET", "/admin/keys?principal=team-a")
    assert [entry["id"] for entry in listed.rows] == [made["id"]]
    shown = listed.rows[0]
    assert (shown["principal"], shown["principal_id"], shown["name"]) == ("team-a", principal, "ci")
    assert (shown["disabled"], shown["last_used_at"], shown["scope"]) == (False, None, "invoke")
    assert datetime.datetime.fromisoformat(shown["expires_at"]).year == 2127
    digest = digest_of(made["key"]).hex()
    for path in ("/admin/keys", f"/admin/keys/{made['id']}", "/admin/audit"):
        body = (await plane.call("GET", path)).body.decode()
        assert made["key"] not in body
        assert digest not in body


async def test_a_key_is_in_the_next_snapshot(plane: ControlPlane) -> None:
    await plane.principal("team-a")
    made = await plane.call("POST", "/admin/keys", {"principal_id": "team-a", "name": "ci"})
    published = await plane.services.publisher.newer_than((made.version or 0) - 1, 5)
    assert published is not None
    assert digest_of(made.json["key"]) in {entry.digest for entry in published.snapshot.keys}
    revoked = await plane.call("DELETE", f"/admin/keys/{made.json['id']}")
    published = await plane.services.publisher.newer_than((revoked.version or 0) - 1, 5)
    assert published is not None
    assert digest_of(made.json["key"]) not in {entry.digest for entry in published.snapshot.keys}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"expires_at": "2001-01-01T00:00:00Z"}, "expires_at"),
        ({"expires_at": "2127-01-01T00:00:00"}, "expires_at"),
        ({"expires_at": "tomorrow"}, "expires_at"),
        ({"scope": "root"}, "scope"),
        ({"name": ""}, "name"),
        ({"principal_id": "nobody"}, "principal_id"),
        ({"principal_id": str(uuid4())}, "principal_id"),
    ],
)
async def test_values_that_are_refused(plane: ControlPlane, fields: dict[str, str], field: str) -> None:
    await plane.principal("team-a")
    answer = await plane.call("POST", "/admin/keys", {"principal_id": "team-a", "name": "ci", **fields})
    assert (answer.status, answer.error["field"]) == (400, field)


async def test_revoking_is_for_good_and_may_be_repeated(plane: ControlPlane) -> None:
    await plane.principal("team-a", "viewer")
    made = await create(plane, scope="admin")
    assert (await plane.call("GET", "/admin/keys", token=made["key"])).status == 200
    first = await plane.call("DELETE", f"/admin/keys/{made['id']}")
    assert (first.status, first.json) == (200, {"disabled": True})
    assert first.version is not None
    assert (await plane.call("GET", "/admin/keys", token=made["key"])).status == 401
    second = await plane.call("DELETE", f"/admin/keys/{made['id']}")
    assert (second.status, second.version) == (200, None)
    assert (await row(plane, made["id"]))["disabled"] is True
    listed = await plane.call("GET", "/admin/keys?disabled=true")
    assert [entry["id"] for entry in listed.rows] == [made["id"]]
    assert (await plane.call("DELETE", f"/admin/keys/{uuid4()}")).status == 404
    assert (await plane.call("DELETE", "/admin/keys/ci")).status == 404


async def test_an_expired_key_opens_nothing(plane: ControlPlane) -> None:
    await plane.principal("team-a", "viewer")
    soon = (plane.clock.now() + datetime.timedelta(seconds=60)).isoformat()
    made = await create(plane, scope="admin", expires_at=soon)
    assert (await plane.call("GET", "/admin/keys", token=made["key"])).status == 200
    plane.clock.advance(61)
    assert (await plane.call("GET", "/admin/keys", token=made["key"])).status == 401
    rotated = await plane.call("POST", f"/admin/keys/{made['id']}/rotate", {})
    assert (rotated.status, rotated.error["code"]) == (409, "key_not_valid")


async def test_rotation_with_a_grace(plane: ControlPlane) -> None:
    await plane.principal("team-a", "viewer")
    old = await create(plane, scope="admin")
    answer = await plane.call("POST", f"/admin/keys/{old['id']}/rotate", {"grace_seconds": 60})
    assert answer.status == 201
    assert answer.version is not None
    new = answer.json
    assert (new["name"], new["scope"], new["expires_at"]) == ("ci", "admin", None)
    assert new["key"] != old["key"]
    for key in (old["key"], new["key"]):
        assert (await plane.call("GET", "/admin/keys", token=key)).status == 200
    plane.clock.advance(61)
    assert (await plane.call("GET", "/admin/keys", token=old["key"])).status == 401
    assert (await plane.call("GET", "/admin/keys", token=new["key"])).status == 200


async def test_rotation_without_a_grace_ends_the_old_key(plane: ControlPlane) -> None:
    await plane.principal("team-a", "viewer")
    old = await create(plane, scope="admin")
    new = (await plane.call("POST", f"/admin/keys/{old['id']}/rotate", {})).json
    assert (await plane.call("GET", "/admin/keys", token=old["key"])).status == 401
    assert (await plane.call("GET", "/admin/keys", token=new["key"])).status == 200
    assert (await row(plane, old["id"]))["disabled"] is True


async def test_a_successor_lives_as_long_as_its_predecessor_was_to(plane: ControlPlane) -> None:
    await plane.principal("team-a")
    month = plane.clock.now() + datetime.timedelta(days=30)
    old = await create(plane, expires_at=month.isoformat())
    plane.clock.advance(20 * 86_400)
    new = (await plane.call("POST", f"/admin/keys/{old['id']}/rotate", {"grace_seconds": 60})).json
    left = datetime.datetime.fromisoformat(new["expires_at"]) - plane.clock.now()
    assert abs(left - datetime.timedelta(days=30)) < datetime.timedelta(minutes=1)


async def test_a_grace_never_lengthens_a_life(plane: ControlPlane) -> None:
    await plane.principal("team-a")
    soon = plane.clock.now() + datetime.timedelta(seconds=30)
    old = await create(plane, expires_at=soon.isoformat())
    await plane.call("POST", f"/admin/keys/{old['id']}/rotate", {"grace_seconds": 3600})
    assert datetime.datetime.fromisoformat((await row(plane, old["id"]))["expires_at"]) == soon
