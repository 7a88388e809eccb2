"""Limits and budgets over the API."""

from __future__ import annotations

import pytest

from tests.fakes.control_plane import ControlPlane

BUDGET = {"tokens_total": 1_000_000, "cost_total_micros": 500_000_000, "window": "monthly"}


async def test_limits_are_replaced_as_a_whole(plane: ControlPlane) -> None:
    await plane.principal("team-a")
    path = "/admin/principals/team-a/limits"
    assert (await plane.call("GET", path)).json == {
        "requests_per_min": None,
        "tokens_per_min": None,
        "max_concurrent": None,
    }
    first = await plane.call("PUT", path, {"requests_per_min": 60, "max_concurrent": 4})
    assert (first.status, first.json["requests_per_min"], first.json["tokens_per_min"]) == (200, 60, None)
    assert first.version is not None
    same = await plane.call("PUT", path, {"requests_per_min": 60, "max_concurrent": 4})
    assert same.version is None
    await plane.call("PUT", path, {"tokens_per_min": 1000})
    (row,) = (await plane.call("GET", "/admin/limits")).rows
    assert (row["principal"], row["tokens_per_min"], row["requests_per_min"]) == ("team-a", 1000, None)
    await plane.call("PUT", path, {})
    assert (await plane.call("GET", "/admin/limits")).rows == []


@pytest.mark.parametrize("value", [0, -1, 1.5, "60", 10**30, True])
async def test_limits_that_are_refused(plane: ControlPlane, value: object) -> None:
    await plane.principal("team-a")
    answer = await plane.call("PUT", "/admin/principals/team-a/limits", {"requests_per_min": value})
    assert (answer.status, answer.error["field"]) == (400, "requests_per_min")


async def test_a_budget_keeps_what_was_used(plane: ControlPlane) -> None:
    principal = await plane.principal("team-a")
    path = "/admin/principals/team-a/budget"
    assert (await plane.call("GET", path)).status == 404
    made = await plane.call("PUT", path, {**BUDGET, "timezone": "Europe/Brussels"})
    assert made.status == 200
    assert made.version is not None
    assert (made.json["tokens_used"], made.json["cost_used_micros"], made.json["percent"]) == (0, 0, 0)
    assert made.json["window_start"] < made.json["window_end"]
    async with plane.services.database.engine.begin() as connection:
        await connection.exec_driver_sql(
            f"UPDATE budgets SET tokens_used = 250000 WHERE principal_id = '{principal}'"
        )
    changed = await plane.call("PUT", path, {"tokens_total": 500_000, "window": "daily"})
    assert (changed.json["tokens_used"], changed.json["percent"]) == (250_000, 50.0)
    assert changed.json["cost_total_micros"] is None
    (row,) = (await plane.call("GET", "/admin/budgets")).rows
    assert (row["principal"], row["tokens_used"], row["window"]) == ("team-a", 250_000, "daily")
    reset = await plane.call("POST", f"{path}/reset")
    assert (reset.status, reset.json["tokens_used"], reset.version) == (200, 0, None)
    assert (await plane.call("DELETE", path)).json == {"deleted": True}
    assert (await plane.call("DELETE", path)).status == 404
    assert (await plane.call("POST", f"{path}/reset")).status == 404


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"tokens_total": None, "cost_total_micros": None}, "tokens_total"),
        ({"tokens_total": 0}, "tokens_total"),
        ({"window": "yearly"}, "window"),
        ({"timezone": "Mars/Phobos"}, "timezone"),
        ({"timezone": "../../etc/passwd"}, "timezone"),
        ({"timezone": "Europe"}, "timezone"),
        ({"starts_at": "yesterday"}, "starts_at"),
        ({"starts_at": "9999-12-31T23:59:59Z"}, "starts_at"),
        ({"tokens": 1}, "tokens"),
    ],
)
async def test_budgets_that_are_refused(plane: ControlPlane, fields: dict[str, object], field: str) -> None:
    await plane.principal("team-a")
    answer = await plane.call("PUT", "/admin/principals/team-a/budget", {**BUDGET, **fields})
    assert (answer.status, answer.error["field"]) == (400, field)
