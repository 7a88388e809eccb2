"""Roles over the API."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from tests.fakes.control_plane import ControlPlane


async def test_the_seeded_roles(plane: ControlPlane) -> None:
    rows = {row["name"]: row for row in (await plane.call("GET", "/admin/roles")).rows}
    assert set(rows) == {"admin", "operator", "inference", "viewer"}
    assert all(row["built_in"] for row in rows.values())
    held = {
        name: sorted((entry["verb"], entry["resource"]) for entry in row["permissions"])
        for name, row in rows.items()
    }
    assert held["inference"] == [("model:invoke", "model/*")]
    assert held["viewer"] == [("config:read", "*"), ("usage:read", "*")]
    verbs = {verb for verb, _ in held["admin"]}
    assert {verb for verb, _ in held["operator"]} == verbs - {"access:write", "model:invoke"}
    assert len(verbs) == 7


async def test_a_role_gains_and_loses_permissions(plane: ControlPlane) -> None:
    made = await plane.call("POST", "/admin/roles", {"name": "team-a-models"})
    assert (made.status, made.json["permissions"]) == (201, [])
    grant = {"verb": "model:invoke", "resource": "model/org/assistant"}
    added = await plane.call("POST", "/admin/roles/team-a-models/permissions", grant)
    assert (added.status, added.json["permissions"]) == (201, [grant])
    assert added.version is not None
    again = await plane.call("POST", "/admin/roles/team-a-models/permissions", grant)
    assert (again.status, again.version) == (201, None)
    dropped = await plane.call("DELETE", "/admin/roles/team-a-models/permissions", grant)
    assert (dropped.status, dropped.json["permissions"]) == (200, [])
    absent = await plane.call("DELETE", "/admin/roles/team-a-models/permissions", grant)
    assert absent.status == 404


@pytest.mark.parametrize(
    ("permission", "field"),
    [
        ({"verb": "model:invoke"}, "resource"),
        ({"verb": "model:invoke", "resource": "model/"}, "resource"),
        ({"verb": "model:invoke", "resource": "assistant"}, "resource"),
        ({"verb": "config:read", "resource": "model/x"}, "resource"),
        ({"verb": "config:everything"}, "verb"),
        ({"resource": "*"}, "verb"),
    ],
)
async def test_permissions_that_are_refused(
    plane: ControlPlane, permission: dict[str, str], field: str
) -> None:
    await plane.role("r")
    answer = await plane.call("POST", "/admin/roles/r/permissions", permission)
    assert (answer.status, answer.error["field"]) == (400, field)


async def test_deleting_a_role_takes_it_from_its_holders(plane: ControlPlane) -> None:
    await plane.role("a/b", ("config:read", "*"))
    await plane.principal("alice", "a/b")
    key = await plane.key_of("alice")
    assert (await plane.call("GET", "/admin/roles", token=key)).status == 200
    assert (await plane.call("DELETE", f"/admin/roles/{quote('a/b', safe='')}")).status == 200
    assert (await plane.call("GET", "/admin/roles", token=key)).status == 403
    assert (await plane.call("GET", "/admin/principals/alice")).json["roles"] == []
    assert (await plane.call("GET", "/admin/roles/a%2Fb")).status == 404


async def test_built_in_roles_do_not_change(plane: ControlPlane) -> None:
    for method, path, body in (
        ("DELETE", "/admin/roles/viewer", None),
        ("POST", "/admin/roles/viewer/permissions", {"verb": "config:write"}),
        ("DELETE", "/admin/roles/admin/permissions", {"verb": "access:write"}),
    ):
        answer = await plane.call(method, path, body)
        assert (answer.status, answer.error["code"]) == (409, "built_in_role")


async def test_names_are_unique(plane: ControlPlane) -> None:
    answer = await plane.call("POST", "/admin/roles", {"name": "viewer"})
    assert (answer.status, answer.error["field"]) == (409, "name")
