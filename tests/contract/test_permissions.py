"""Over the socket, for every operation there is: what it declares to need is what is asked of its caller."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import get_args

import pytest

from fastllm_control.access import Verb
from fastllm_control.api.everything import OPERATIONS
from tests.fakes.control_plane import PROXY_TOKEN, ControlPlane

GUARDED = [one for one in OPERATIONS if one.requires != "public"]
VERBS = frozenset(get_args(Verb))


@pytest.fixture
async def plane(database_url: str) -> AsyncIterator[ControlPlane]:
    async with ControlPlane.start(database_url) as started:
        yield started


def test_what_is_public_is_known_and_no_reader_may_write() -> None:
    public = {f"{one.method} {one.path}" for one in OPERATIONS if one.requires == "public"}
    assert public == {
        "GET /healthz",
        "GET /readyz",
        "GET /metrics",
        "GET /openapi.json",
        "GET /docs",
        "POST /login",
        "POST /logout",
    }
    for one in OPERATIONS:
        if one.method != "GET":
            assert one.requires not in ("config:read", "usage:read"), one.path
        if one.path.startswith("/admin"):
            assert one.requires in VERBS | {"session", "any_principal"}, one.path


async def test_strangers_and_false_tokens_are_refused_everywhere(plane: ControlPlane) -> None:
    for one in GUARDED:
        path = re.sub(r"\{\w+\}", "x", one.path)
        for token in (None, "sk-" + "x" * 43, PROXY_TOKEN[:-1]):
            assert (await plane.call(one.method, path, token=token)).status == 401, path
        assert (await plane.call(one.method, path, cookie="x" * 43)).status == 401, path


async def test_all_verbs_but_the_one_needed_open_nothing(plane: ControlPlane) -> None:
    keys = {}
    for verb in sorted(VERBS):
        others = [(other, "model/*" if other == "model:invoke" else "*") for other in VERBS - {verb}]
        role = await plane.role(verb.replace(":", "-"), *others)
        await plane.principal(role, role)
        keys[verb] = await plane.key_of(role)
    for one in GUARDED:
        if one.requires in VERBS:
            path = re.sub(r"\{\w+\}", "x", one.path)
            answer = await plane.call(one.method, path, token=keys[one.requires])
            assert (answer.status, answer.error["code"]) == (403, "forbidden"), path
            assert one.requires in answer.error["message"]


async def test_an_invoke_key_and_the_proxies_token_open_nothing_of_the_admin_api(plane: ControlPlane) -> None:
    invoke = await plane.key_of("root", "invoke")
    for one in GUARDED:
        path = re.sub(r"\{\w+\}", "x", one.path)
        if one.requires not in ("any_principal", "proxy"):
            assert (await plane.call(one.method, path, token=invoke)).status == 403, path
        if one.requires != "proxy":
            assert (await plane.call(one.method, path, token=PROXY_TOKEN)).status == 403, path
        else:
            for token in (invoke, ""):
                assert (await plane.call(one.method, path, token=token)).status == 403, path
