"""Applying a file is no way around: whoever applies it needs, for each thing that it changes, what the call
that changes only that would need."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from fastllm_control.access import VERBS
from tests.fakes.control_plane import ControlPlane
from tests.fakes.engine import FakeEngine


@pytest.fixture
async def plane(database_url: str) -> AsyncIterator[ControlPlane]:
    async with ControlPlane.start(database_url) as started:
        yield started


async def key_with(plane: ControlPlane, *verbs: str) -> str:
    """The admin key of `mallory`, who holds them by the role `mine`."""
    await plane.role("mine", *((verb, "*") for verb in verbs))
    await plane.principal("mallory", "mine", kind="service_account")
    return await plane.key_of("mallory")


OPERATOR = tuple(sorted(VERBS - {"access:write", "model:invoke"}))
CLERK = ("access:write", "config:read", "key:create", "key:revoke")
FRONTEND = {"frontend_models": [{"name": "a"}]}
ROLE = {"roles": [{"name": "new"}]}
OWN_ROLE = {"roles": [{"name": "mine", "permissions": [{"verb": "access:write"}, {"verb": "config:write"}]}]}
GRANT = {"roles": [{"name": "g", "permissions": [{"verb": "model:invoke", "resource": "model/*"}]}]}
SELF_MADE_ADMIN = {"principals": [{"name": "mallory", "roles": ["admin", "mine"]}]}
BOTH = {"frontend_models": [{"name": "a"}], "roles": [{"name": "new"}]}


@pytest.mark.parametrize(
    ("verbs", "document", "code"),
    [
        (OPERATOR, ROLE, "forbidden"),
        (OPERATOR, SELF_MADE_ADMIN, "forbidden"),
        (OPERATOR, BOTH, "forbidden"),
        (CLERK, FRONTEND, "forbidden"),
        (CLERK, BOTH, "forbidden"),
        (CLERK, OWN_ROLE, "more_than_held"),
        (CLERK, GRANT, "more_than_held"),
        (CLERK, SELF_MADE_ADMIN, "more_than_held"),
        (("config:read", "usage:read"), FRONTEND, "forbidden"),
        (("usage:read",), ROLE, "forbidden"),
    ],
)
async def test_what_the_plan_touches_is_asked_for(
    plane: ControlPlane, verbs: tuple[str, ...], document: dict[str, Any], code: str
) -> None:
    key = await key_with(plane, *verbs)
    before = (await plane.call("GET", "/admin/audit?limit=1")).rows
    for dry_run in (True, False):
        body = {"document": {"format": 1, **document}, "dry_run": dry_run}
        answer = await plane.call("POST", "/admin/apply", body, token=key)
        assert (answer.status, answer.error["code"]) == (403, code), answer.body
        assert answer.version is None
    assert (await plane.call("GET", "/admin/audit?limit=1")).rows == before


async def test_pruning_takes_nobody_away_who_holds_more_nor_the_last_who_administers(
    plane: ControlPlane,
) -> None:
    clerk = await key_with(plane, *CLERK)
    await plane.principal("second", "admin")
    await plane.key_of("second")
    mallory = {"name": "mallory", "kind": "service_account", "roles": ["mine"]}
    document = {"format": 1, "principals": [mallory]}
    body = {"document": document, "prune": True}
    answer = await plane.call("POST", "/admin/apply", body, token=clerk)
    assert (answer.status, answer.error["code"]) == (403, "more_than_held"), answer.body
    answer = await plane.call("POST", "/admin/apply", body)
    assert (answer.status, answer.error["code"]) == (409, "last_administrator"), answer.body


async def test_nothing_is_dialled_for_one_who_may_not_add_providers(plane: ControlPlane) -> None:
    clerk = await key_with(plane, *CLERK)
    async with FakeEngine.start() as engine:
        document = {"format": 1, "providers": [{"name": "mine", "api_base": engine.url}]}
        answer = await plane.call("POST", "/admin/apply", {"document": document}, token=clerk)
        assert answer.status == 403
        assert engine.requests == []
        assert (await plane.call("POST", "/admin/apply", {"document": document})).status == 200
        assert engine.requests


async def test_an_invoke_key_and_the_proxies_token_apply_nothing(plane: ControlPlane) -> None:
    invoke = await plane.key_of("root", "invoke")
    body = {"document": {"format": 1, **FRONTEND}}
    for token, status in ((invoke, 403), ("proxy-token-for-tests", 403), (None, 401)):
        assert (await plane.call("POST", "/admin/apply", body, token=token)).status == status


async def test_an_operator_applies_routes_and_a_clerk_applies_roles(plane: ControlPlane) -> None:
    operator = await key_with(plane, *OPERATOR)
    document = {"format": 1, **FRONTEND}
    assert (await plane.call("POST", "/admin/apply", {"document": document}, token=operator)).status == 200
    await plane.role("clerks", *((verb, "*") for verb in CLERK))
    await plane.principal("clerk", "clerks")
    document = {"format": 1, **ROLE}
    clerk = await plane.key_of("clerk")
    assert (await plane.call("POST", "/admin/apply", {"document": document}, token=clerk)).status == 200
