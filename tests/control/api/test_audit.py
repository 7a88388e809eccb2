"""The audit log over the API."""

from __future__ import annotations

from tests.fakes.control_plane import ControlPlane


async def test_a_change_says_who_what_and_how(plane: ControlPlane) -> None:
    made = await plane.call("POST", "/admin/roles", {"name": "r"}, headers={"x-request-id": "req-1"})
    grant = {"verb": "config:read"}
    added = await plane.call("POST", "/admin/roles/r/permissions", grant, headers={"x-request-id": "req-2"})
    newest, before = (await plane.call("GET", "/admin/audit?limit=2")).rows
    assert (newest["action"], newest["request_id"], newest["version"]) == (
        "role.add_permission",
        "req-2",
        added.version,
    )
    assert newest["changes"] == {"permissions": {"before": [], "after": ["config:read *"]}}
    assert (newest["actor"], newest["via"], newest["address"]) == ("root", "key", "127.0.0.1")
    assert (before["action"], before["target_kind"], before["target_name"]) == ("role.create", "role", "r")
    assert (before["target_id"], before["version"]) == (made.json["id"], None)


async def test_neither_reads_nor_refused_attempts_are_in_it(plane: ControlPlane) -> None:
    before = (await plane.call("GET", "/admin/audit")).rows
    await plane.call("GET", "/admin/keys")
    await plane.call("POST", "/admin/roles", {"name": "viewer"})
    await plane.call("POST", "/admin/roles", {"nam": "x"})
    await plane.call("DELETE", "/admin/principals/nobody")
    assert (await plane.call("GET", "/admin/audit")).rows == before


async def test_pages_meet_without_gap_or_overlap(plane: ControlPlane) -> None:
    for number in range(5):
        await plane.role(f"r{number}")
    whole = [row["id"] for row in (await plane.call("GET", "/admin/audit")).rows]
    assert whole == sorted(whole, reverse=True)
    found: list[int] = []
    after = ""
    while True:
        page = await plane.call("GET", f"/admin/audit?limit=2{after}")
        found += [row["id"] for row in page.rows]
        await plane.role(f"meanwhile-{len(found)}")
        if page.json["next"] is None:
            break
        after = f"&after={page.json['next']}"
    assert found == whole


async def test_filters(plane: ControlPlane) -> None:
    await plane.role("r1")
    principal = await plane.principal("alice")
    rows = (await plane.call("GET", "/admin/audit?action=role.create")).rows
    assert {row["action"] for row in rows} == {"role.create"}
    by_name = (await plane.call("GET", "/admin/audit?target=alice")).rows
    by_id = (await plane.call("GET", f"/admin/audit?target={principal}")).rows
    assert [row["action"] for row in by_name] == [row["action"] for row in by_id] == ["principal.create"]
    assert (await plane.call("GET", "/admin/audit?until=2001-01-01T00:00:00Z")).rows == []
    assert (await plane.call("GET", "/admin/audit?actor=nobody")).rows == []
    assert (await plane.call("GET", "/admin/audit?since=2001-01-01T00:00:00")).error["field"] == "since"
    assert (await plane.call("GET", "/admin/audit?after=-1")).error["field"] == "after"
