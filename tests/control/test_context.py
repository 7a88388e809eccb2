"""The outermost layer: request ids, the access log, and answers given before a body was read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.fakes.control_plane import ControlPlane
from tests.fakes.edge import eventually


async def line_of(plane: ControlPlane, request_id: str) -> dict[str, Any]:
    """The one line of a request; it is written after the answer has left."""

    def lines() -> list[dict[str, Any]]:
        return [entry for entry in plane.log.events("request") if entry["request_id"] == request_id]

    await eventually(lambda: bool(lines()))
    (line,) = lines()
    return line


async def test_every_answer_carries_the_request_id_and_has_one_line(plane: ControlPlane) -> None:
    for path, status in (("/admin/keys", 200), ("/nothing", 404), ("/admin/keys?x=1", 400)):
        answer = await plane.call("GET", path, headers={"x-request-id": f"id-{status}"})
        assert (answer.status, answer.headers["x-request-id"]) == (status, f"id-{status}")
        line = await line_of(plane, f"id-{status}")
        assert (line["status"], line["method"], line["address"]) == (status, "GET", "127.0.0.1")
        assert "?" not in line["path"]
        assert line["duration_ms"] >= 0
    made_up = await plane.call("GET", "/nothing")
    assert made_up.headers["x-request-id"] == made_up.error["request_id"]


async def test_probes_do_not_fill_the_log(plane: ControlPlane) -> None:
    answer = await plane.call("GET", "/healthz", token=None)
    assert (await line_of(plane, answer.headers["x-request-id"]))["log_level"] == "debug"


async def test_the_line_names_the_actor(plane: ControlPlane) -> None:
    answer = await plane.call("GET", "/admin/keys")
    assert (await line_of(plane, answer.headers["x-request-id"]))["actor"] == "root"


@pytest.mark.parametrize("token", [None, ""])
async def test_large_bodies_that_are_refused_unread_do_not_hang(
    plane: ControlPlane, token: str | None
) -> None:
    """Larger than what Hypercorn queues between its reader and the application."""
    body = b" " * (3 << 20)
    async with asyncio.timeout(20):
        answers = [
            await plane.call("PUT", "/admin/principals/root/limits", raw=body, token=token) for _ in range(5)
        ]
    assert {answer.status for answer in answers} == {401 if token is None else 413}
    # The connection is in order: the next request on it is answered as well.
    assert (await plane.call("GET", "/admin/keys")).status == 200
