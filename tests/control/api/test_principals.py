"""Principals over the API, as transcripts."""

from __future__ import annotations

from urllib.parse import quote
from uuid import uuid4

import pytest

from tests.fakes.control_plane import PASSWORD, ControlPlane


async def test_a_new_principal_holds_nothing(plane: ControlPlane) -> None:
    made = await plane.call("POST", "/admin/principals", {"name": "team-a"})
    assert made.status == 201
    assert made.json["kind"] == "service_account"
    assert made.json["roles"] == []
    assert made.version is not None
    by_id = await plane.call("GET", f"/admin/principals/{made.json['id']}")
    by_name = await plane.call("GET", "/admin/principals/team-a")
    assert by_id.json == by_name.json == made.json


async def test_names_are_unique_and_no_uuids(plane: ControlPlane) -> None:
    await plane.principal("team-a")
    taken = await plane.call("POST", "/admin/principals", {"name": "team-a"})
    assert (taken.status, taken.error["field"]) == (409, "name")
    shaped = await plane.call("POST", "/admin/principals", {"name": str(uuid4())})
    assert (shaped.status, shaped.error["field"]) == (400, "name")


@pytest.mark.parametrize("name", ["", " a", "a ", "a\nb", "a\u0000b", "x" * 201])
async def test_names_that_are_refused(plane: ControlPlane, name: str) -> None:
    answer = await plane.call("POST", "/admin/principals", {"name": name})
    assert (answer.status, answer.error["field"]) == (400, "name")


@pytest.mark.parametrize("name", ["org/team", "a/roles", "ü ß", "50%", "a?b#c", "..", "a%2Fb"])
async def test_any_other_name_is_reached_through_the_path(plane: ControlPlane, name: str) -> None:
    made = await plane.principal(name)
    shown = await plane.call("GET", f"/admin/principals/{quote(name, safe='')}")
    assert shown.json["id"] == made
    given = await plane.call("POST", f"/admin/principals/{quote(name, safe='')}/roles", {"role": "viewer"})
    assert given.json == {"roles": ["viewer"]}


async def test_a_name_with_slashes_may_be_written_plainly(plane: ControlPlane) -> None:
    made = await plane.principal("org/team/a")
    assert (await plane.call("GET", "/admin/principals/org/team/a")).json["id"] == made
    given = await plane.call("POST", "/admin/principals/org/team/a/roles", {"role": "viewer"})
    assert given.status == 201


async def test_lists_are_paged(plane: ControlPlane) -> None:
    for number in range(4):
        await plane.principal(f"p{number}", kind="service_account")
    first = await plane.call("GET", "/admin/principals?limit=2&kind=service_account")
    assert [row["name"] for row in first.rows] == ["p0", "p1"]
    after = first.json["next"]
    second = await plane.call("GET", f"/admin/principals?limit=2&kind=service_account&after={after}")
    assert [row["name"] for row in second.rows] == ["p2", "p3"]
    assert second.json["next"] is None
    people = await plane.call("GET", "/admin/principals?kind=user")
    assert [(row["name"], row["roles"], row["has_password"]) for row in people.rows] == [
        ("root", ["admin"], True)
    ]
    assert (await plane.call("GET", "/admin/principals?after=x")).error["field"] == "after"


async def test_roles_are_given_once_and_taken_once(plane: ControlPlane) -> None:
    made = await plane.principal("team-a", "viewer", "inference")
    again = await plane.call("POST", f"/admin/principals/{made}/roles", {"role": "viewer"})
    assert (again.status, again.version) == (201, None)
    assert again.json == {"roles": ["inference", "viewer"]}
    taken = await plane.call("DELETE", "/admin/principals/team-a/roles", {"role": "viewer"})
    assert (taken.status, taken.json) == (200, {"roles": ["inference"]})
    assert taken.version is not None
    absent = await plane.call("DELETE", "/admin/principals/team-a/roles", {"role": "viewer"})
    assert absent.status == 404
    unknown = await plane.call("POST", "/admin/principals/team-a/roles", {"role": "nobody"})
    assert (unknown.status, unknown.error["field"]) == (400, "role")


async def test_renaming_keeps_what_hangs_on_it(plane: ControlPlane) -> None:
    made = await plane.principal("team-a", "viewer")
    key = await plane.key_of("team-a")
    renamed = await plane.call("PATCH", "/admin/principals/team-a", {"name": "team-b"})
    assert (renamed.status, renamed.json["id"], renamed.json["roles"]) == (200, made, ["viewer"])
    assert (await plane.call("GET", "/admin/sessions/current", token=key)).json["name"] == "team-b"
    unchanged = await plane.call("PATCH", "/admin/principals/team-b", {})
    assert (unchanged.status, unchanged.version) == (200, None)
    taken = await plane.call("PATCH", "/admin/principals/team-b", {"name": "root"})
    assert taken.status == 409


async def test_deleting_ends_its_keys(plane: ControlPlane) -> None:
    await plane.principal("team-a", "viewer")
    key = await plane.key_of("team-a")
    assert (await plane.call("GET", "/admin/keys", token=key)).status == 200
    gone = await plane.call("DELETE", "/admin/principals/team-a")
    assert (gone.status, gone.json) == (200, {"deleted": True})
    assert gone.version is not None
    assert (await plane.call("GET", "/admin/keys", token=key)).status == 401
    assert (await plane.call("DELETE", "/admin/principals/team-a")).status == 404


async def test_a_password_opens_a_session_and_ends_the_others(plane: ControlPlane) -> None:
    await plane.principal("alice", "viewer")
    set_it = await plane.call("PUT", "/admin/principals/alice/password", {"password": PASSWORD})
    assert set_it.status == 200
    cookie = await plane.log_in("alice")
    assert (await plane.call("GET", "/admin/keys", cookie=cookie)).status == 200
    await plane.call("PUT", "/admin/principals/alice/password", {"password": "another good one"})
    assert (await plane.call("GET", "/admin/keys", cookie=cookie)).status == 401


async def test_changing_ones_own_password_keeps_this_session(plane: ControlPlane) -> None:
    mine, other = await plane.log_in(), await plane.log_in()
    changed = await plane.call(
        "PUT", "/admin/principals/root/password", {"password": "another good one"}, cookie=mine
    )
    assert changed.status == 200
    assert (await plane.call("GET", "/admin/keys", cookie=mine)).status == 200
    assert (await plane.call("GET", "/admin/keys", cookie=other)).status == 401


async def test_service_accounts_have_no_password(plane: ControlPlane) -> None:
    await plane.principal("robot", kind="service_account")
    answer = await plane.call("PUT", "/admin/principals/robot/password", {"password": PASSWORD})
    assert (answer.status, answer.error["code"]) == (400, "not_a_person")
    short = await plane.call("PUT", "/admin/principals/root/password", {"password": "short"})
    assert (short.status, short.error["field"]) == (400, "password")
    assert "short" not in short.error["message"]
