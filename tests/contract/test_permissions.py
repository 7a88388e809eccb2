"""Every route of the OpenAPI document against every kind of caller: what it promises is what it does.

The table is the document's: a route that is added is covered by being added.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec
import pytest
import pytest_asyncio

from fastllm_control.access import VERBS
from fastllm_control.api.everything import OPERATIONS
from fastllm_control.openapi import PERMISSION, document
from tests.contract.callers import HELD, Caller, all_callers
from tests.fakes.control_plane import Answer, ControlPlane
from tests.fakes.database import TestDatabases

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Route(NamedTuple):
    method: str
    path: str
    permission: str


def _routes(described: dict[str, Any]) -> list[Route]:
    return [
        Route(method.upper(), path, operation[PERMISSION])
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
    ]


ROUTES = _routes(msgspec.json.decode(msgspec.json.encode(document(OPERATIONS))))
GUARDED = [route for route in ROUTES if route.permission != "public"]


class Stage(NamedTuple):
    plane: ControlPlane
    callers: list[Caller]

    async def knock(self, route: Route, caller: Caller, raw: bytes | None = None) -> Answer:
        """Without a body, and at an id of nothing: whoever is let in goes on to another refusal."""
        path = re.sub(r"\{\w+\}", str(uuid4()), route.path)
        return await self.plane.call(route.method, path, token=caller.token, cookie=caller.cookie, raw=raw)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def stage(databases: TestDatabases, migrated_template: str) -> AsyncIterator[Stage]:
    name = databases.create(template=migrated_template)
    async with ControlPlane.start(databases.url(name)) as plane:
        yield Stage(plane, await all_callers(plane))
    databases.drop(name)


def _name(route: Route) -> str:
    return f"{route.method} {route.path}"


every_route = pytest.mark.parametrize("route", ROUTES, ids=_name)
every_guarded_route = pytest.mark.parametrize("route", GUARDED, ids=_name)


async def test_the_document_that_is_served_is_the_one_that_is_tested(stage: Stage) -> None:
    served = await stage.plane.call("GET", "/openapi.json", token=None)
    assert _routes(served.json) == ROUTES
    assert len(ROUTES) > 40


async def test_the_seeded_roles_hold_what_is_promised(stage: Stage) -> None:
    for role, held in HELD.items():
        shown = await stage.plane.call("GET", f"/admin/roles/{role}")
        assert shown.json["built_in"] is True
        wanted = {(verb, "model/*" if verb == "model:invoke" else "*") for verb in held}
        assert {(one["verb"], one["resource"]) for one in shown.json["permissions"]} == wanted
    assert HELD["admin"] == VERBS


async def test_what_is_open_is_known_and_no_reader_may_write() -> None:
    assert {_name(route) for route in ROUTES if route.permission == "public"} == {
        "GET /healthz",
        "GET /readyz",
        "GET /metrics",
        "GET /openapi.json",
        "GET /docs",
        "POST /login",
        "POST /logout",
    }
    asked = {
        _name(route): route.permission
        for route in ROUTES
        if route.method != "GET" and route.permission in ("config:read", "usage:read", "session")
    }
    # The first reads what would happen, and takes a body only because the question is long; what the second
    # takes depends on what its plan touches, and is asked for once that is known.
    assert set(asked) <= {"POST /admin/routing/dry-run", "POST /admin/apply"}, asked
    for route in ROUTES:
        known = VERBS | {"session", "any_principal"}
        assert route.permission in (known if route.path.startswith("/admin") else known | {"public", "proxy"})


@every_route
async def test_each_caller_gets_in_or_not_as_the_document_says(stage: Stage, route: Route) -> None:
    wrong = []
    for caller in stage.callers:
        if route.path == "/logout" and caller.cookie is not None:
            continue  # it would end the session that other routes are asked with
        answer = await stage.knock(route, caller)
        expected = caller.refused_with(route.permission)
        got = answer.status if answer.status in (401, 403) else None
        # A login without a body is no failed login.
        if got != expected or answer.status >= 500:
            wrong.append(f"{caller}: {answer.status}, not {expected or 'let in'}: {answer.body[:200]!r}")
    assert not wrong


@every_guarded_route
async def test_who_is_refused_is_refused_before_anything_is_read(stage: Stage, route: Route) -> None:
    """Neither what the body says nor how large it is, nor whether the thing exists, is told to strangers."""
    for caller in (stage.callers[0], stage.callers[1]):
        for raw in (b"{", b'{"no_such": 1}', b" " * 70_000) if route.method != "GET" else (None,):
            answer = await stage.knock(route, caller, raw)
            assert (answer.status, answer.error["field"]) == (401, None)
        if route.method == "GET":
            assert (await stage.knock(route._replace(method="HEAD"), caller)).status == 401


@pytest.mark.parametrize("route", [route for route in GUARDED if route.permission in VERBS], ids=_name)
async def test_the_refusal_names_the_permission_that_is_missing(stage: Stage, route: Route) -> None:
    for caller in stage.callers:
        if caller.proof == "admin key" and caller.refused_with(route.permission):
            answer = await stage.knock(route, caller)
            assert f"`{route.permission}`" in answer.error["message"]


async def test_every_verb_but_the_one_that_is_needed_opens_nothing(stage: Stage) -> None:
    for verb in sorted(VERBS):
        others = [(other, "model/*" if other == "model:invoke" else "*") for other in VERBS - {verb}]
        role = await stage.plane.role(f"all-but-{verb}".replace(":", "-"), *others)
        await stage.plane.principal(role, role)
        key = await stage.plane.key_of(role)
        for route in GUARDED:
            if route.permission == verb:
                answer = await stage.knock(route, Caller("admin key", token=key))
                assert (answer.status, answer.error["code"]) == (403, "forbidden"), _name(route)


async def test_a_refused_caller_leaves_nothing(stage: Stage) -> None:
    before = await stage.plane.call("GET", "/admin/audit?limit=1")
    for route in GUARDED:
        if route.method != "GET":
            for caller in stage.callers:
                if caller.refused_with(route.permission):
                    await stage.knock(route, caller)
    after = await stage.plane.call("GET", "/admin/audit?limit=1")
    assert before.rows == after.rows


async def test_nothing_was_a_defect(stage: Stage) -> None:
    assert not stage.plane.log.events("request failed")
