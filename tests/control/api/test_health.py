"""`/admin/health`."""

from __future__ import annotations

from tests.fakes.control_plane import ControlPlane


async def test_health_of_a_plane_that_is_well(plane: ControlPlane) -> None:
    made = await plane.call("POST", "/admin/principals", {"name": "team-a"})
    assert await plane.services.publisher.newer_than((made.version or 0) - 1, 5)
    health = (await plane.call("GET", "/admin/health")).json
    assert health["snapshot_version"] >= made.version
    assert health["snapshot_rebuild_failures"] == 0
    assert (health["last_error"], health["database"]) == (None, "ok")
    assert (health["usage_gaps"], health["dropped"], health["leader"]) == ([], [], None)
