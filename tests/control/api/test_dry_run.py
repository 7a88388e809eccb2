"""The dry run over the API."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from fastllm_control.services.dry_run import GENERATES, Endpoint
from fastllm_proxy.endpoints import ENDPOINTS
from fastllm_shared.ids import uuid7
from tests.fakes.control_plane import Answer, ControlPlane

DRY_RUN = "/admin/routing/dry-run"


async def made(plane: ControlPlane, path: str, **body: Any) -> Any:
    answer = await plane.call("POST", path, body)
    assert answer.status == 201, answer.body
    return answer.json


async def asks(plane: ControlPlane, **question: Any) -> Answer:
    return await plane.call("POST", DRY_RUN, {"model": "assistant", "principal": "team-a", **question})


async def told(plane: ControlPlane, **question: Any) -> Any:
    answer = await asks(plane, **question)
    assert answer.status == 200, answer.body
    assert answer.version is None
    return answer.json


@pytest.fixture
async def backends(plane: ControlPlane) -> dict[str, str]:
    """Two providers, two models, one frontend model over both; the ids of backends by provider."""
    found = {}
    for name, protocol in (("gpu-1", "both"), ("gpu-2", "openai")):
        body = {"name": name, "api_base": f"http://127.0.0.1:9/{name}", "protocol": protocol}
        await plane.call("POST", "/admin/providers?force=true", body)
    served = [{"provider": name, "upstream_model": f"up-{name}"} for name in ("gpu-1", "gpu-2")]
    model = await made(plane, "/admin/provider-models", name="qwen", context_length=1000, backends=served)
    found = {one["provider"]: one["id"] for one in model["backends"]}
    await made(plane, "/admin/provider-models", name="empty")
    targets = [{"target": "qwen", "weight": 1}, {"target": "empty"}, {"target": "nowhere"}]
    await made(plane, "/admin/frontend-models", name="assistant", targets=targets)
    await plane.role("team", ("model:invoke", "model/assistant"))
    await plane.principal("team-a", "team", kind="service_account")
    return found


@pytest.mark.usefixtures("backends")
async def test_the_worked_session(plane: ControlPlane) -> None:
    await made(
        plane,
        "/admin/frontend-models/assistant/rules",
        when={"stream": False},
        targets=[{"target": "cheap"}],
        tag="batch",
    )
    answer = await told(plane, stream=True, prompt_tokens=100, max_tokens=50, headers={})
    assert answer["rule"] is None
    assert answer["rejected"] == [{"position": 0, "failed": "stream", "model": "assistant"}]
    assert (answer["denied"], answer["tag"], answer["granted"]) == (None, None, True)
    chain = {link["target"]: link for link in answer["chain"]}
    assert list(chain) == ["qwen", "empty", "nowhere"]
    assert [one["skipped"] for one in chain["qwen"]["backends"]] == [None, None]
    assert {name: link["skipped"] for name, link in chain.items()} == {
        "qwen": None,
        "empty": "no_backends",
        "nowhere": "unresolved",
    }
    assert (chain["qwen"]["kind"], chain["qwen"]["policy"], chain["qwen"]["fits"]) == (
        "provider_model",
        "cache-affinity",
        True,
    )
    assert answer["request"]["roles"] == ["team"]
    batch = await told(plane, stream=False)
    assert (batch["rule"], batch["tag"], batch["rejected"]) == (0, "batch", [])
    assert [link["skipped"] for link in batch["chain"]] == ["unresolved"]


async def test_why_each_candidate_is_skipped(plane: ControlPlane, backends: dict[str, str]) -> None:
    async def skipped(**question: Any) -> dict[str, Any]:
        answer = await told(plane, **question)
        (qwen,) = (link for link in answer["chain"] if link["target"] == "qwen")
        return {one["provider"]: one["skipped"] for one in qwen["backends"]}

    assert await skipped() == {"gpu-1": None, "gpu-2": None}
    assert await skipped(endpoint="/messages") == {"gpu-1": None, "gpu-2": "dialect"}
    await plane.call("PATCH", f"/admin/backends/{backends['gpu-1']}", {"state": "draining"})
    await plane.call("PATCH", "/admin/providers/gpu-2", {"state": "disabled"})
    assert await skipped() == {"gpu-1": "draining", "gpu-2": "disabled"}
    links = {link["target"]: link["skipped"] for link in (await told(plane))["chain"]}
    assert links["qwen"] == "no_usable_backend"


@pytest.mark.usefixtures("backends")
async def test_denied_after_a_jump(plane: ControlPlane) -> None:
    await made(plane, "/admin/frontend-models", name="guard")
    path = "/admin/frontend-models/guard/rules"
    await made(plane, path, when={"min_prompt_tokens": 9}, action="deny", deny_status=413, tag="long")
    await made(plane, "/admin/frontend-models/assistant/rules", action="jump", jump="guard", tag="jumped")
    long = await told(plane, prompt_tokens=10)
    assert long["denied"] == {"status": 413, "message": "denied by a rule"}
    assert (long["rule"], long["tag"], long["chain"], long["decided_in"]) == (0, "long", [], "guard")
    assert long["jumps"] == [{"model": "assistant", "position": 0, "to": "guard"}]
    short = await told(plane, prompt_tokens=8)
    assert (short["denied"], short["tag"], short["chain"]) == (None, "jumped", [])
    assert short["rejected"] == [{"position": 0, "failed": "min_prompt_tokens", "model": "guard"}]
    unknown = await told(plane)
    assert unknown["denied"] is None
    await plane.call("DELETE", "/admin/frontend-models/guard")
    gone = await told(plane)
    assert gone["rejected"] == [{"position": 0, "failed": "jump", "model": "assistant"}]


@pytest.mark.usefixtures("backends")
async def test_a_whole_body_says_what_is_not_given(plane: ControlPlane) -> None:
    body = {"model": "assistant", "stream": True, "max_tokens": 7, "n": 2, "messages": []}
    answer = await plane.call("POST", DRY_RUN, {"body": body, "principal": "team-a"})
    seen = answer.json["request"]
    assert (seen["stream"], seen["max_tokens"], seen["conversation_known"]) == (True, 14, True)
    assert seen["prompt_tokens"] == 17
    seen = (await told(plane, body=body, stream=False, max_tokens=3, prompt_tokens=2))["request"]
    assert (seen["stream"], seen["max_tokens"], seen["prompt_tokens"]) == (False, 3, 2)


@pytest.mark.usefixtures("backends")
async def test_facts_may_be_given(plane: ControlPlane) -> None:
    path = "/admin/frontend-models/assistant/rules"
    for number, when in enumerate(
        (
            {"principals": ["team-b"]},
            {"roles": ["ops"]},
            {"headers": {"X-Tier": "gold"}},
            {"min_budget_used_percent": 80},
            {"after": "22:00", "before": "06:00", "timezone": "Europe/Brussels"},
            {"max_inflight_per_backend": 3},
        )
    ):
        await made(plane, path, when=when, targets=[{"target": "qwen"}], tag=str(number))
    day = {"at": "2026-07-01T10:00:00Z"}
    for question, rule in (
        ({"inflight_per_backend": 4}, None),
        ({}, 5),
        ({"at": "2026-07-01T20:30:00Z"}, 4),
        ({"at": "2026-07-01T22:30:00+02:00"}, 4),
        ({"budget_used_percent": 80}, 3),
        ({"headers": {"x-TIER": "gold"}}, 2),
        ({"roles": ["ops", "x"]}, 1),
    ):
        answer = await told(plane, **{**day, **question})
        assert answer["rule"] == rule, question
        assert answer["tag"] == (None if rule is None else str(rule))


async def test_the_fallback_is_told(plane: ControlPlane, backends: dict[str, str]) -> None:
    del backends
    await made(plane, "/admin/provider-models", name="spare")
    await made(plane, "/admin/frontend-models", name="last", targets=[{"target": "spare"}])
    assert (await told(plane))["fallback"] is None
    await plane.call("PUT", "/admin/fallback-model", {"frontend_model": "last"})

    async def fallback(**question: Any) -> Any:
        return (await told(plane, **question))["fallback"]["skipped"]

    assert await fallback() == "not_granted"
    assert await fallback(model="last") == "asked_for"
    assert (await told(plane, model="last"))["granted"] is False
    await plane.call(
        "POST", "/admin/roles/team/permissions", {"verb": "model:invoke", "resource": "model/last"}
    )
    answer = await told(plane)
    assert answer["fallback"] == {"frontend_model": "last", "skipped": None}
    assert [(one["target"], one["fallback"]) for one in answer["chain"]][-1] == ("spare", True)
    rule = await made(plane, "/admin/frontend-models/last/rules", action="deny", deny_status=403)
    assert await fallback() == "denied_by_its_rule"
    await plane.call("PATCH", f"/admin/rules/{rule['id']}", {"action": "route"})
    await plane.call("PUT", "/admin/frontend-models/last/targets", [{"target": "qwen"}])
    assert await fallback() == "nothing_new"
    await made(plane, "/admin/frontend-models/assistant/rules", action="deny", deny_status=403)
    assert await fallback() == "denied"
    await plane.call("DELETE", "/admin/frontend-models/last")
    assert await fallback() == "deleted"


async def test_the_caller_is_who_asks_if_nobody_is_named(
    plane: ControlPlane, backends: dict[str, str]
) -> None:
    del backends
    answer = await plane.call("POST", DRY_RUN, {"model": "assistant"})
    assert (answer.json["request"]["principal"], answer.json["granted"]) == ("root", True)
    reader = await plane.role("reader", ("config:read", "*"))
    await plane.principal("ann", reader)
    answer = await plane.call("POST", DRY_RUN, {"model": "assistant"}, token=await plane.key_of("ann"))
    assert (answer.json["request"]["principal"], answer.json["granted"]) == ("ann", False)


@pytest.mark.usefixtures("backends")
async def test_what_is_wrong_is_named(plane: ControlPlane) -> None:
    for question, field in (
        ({"model": "nothing"}, "model"),
        ({"model": "qwen"}, "model"),
        ({"model": None}, "model"),
        ({"model": None, "body": {"model": "nothing"}}, "body.model"),
        ({"principal": "nobody"}, "principal"),
        ({"principal": str(uuid7())}, "principal"),
        ({"body": [1]}, "body"),
        ({"body": "x"}, "body"),
        ({"body": None}, "body"),
        ({"body": {"model": 7}}, "body"),
        ({"headers": {"X-A": "1", "x-a": "1"}}, "headers"),
        ({"headers": {"a b": "1"}}, "headers"),
        ({"at": "2026-07-01T10:00:00"}, "at"),
        ({"at": "9999-12-31T23:59:59-12:00"}, "at"),
        ({"at": "0001-01-01T00:00:00Z"}, "at"),
        ({"endpoint": "/batches"}, "endpoint"),
        ({"prompt_tokens": -1}, "prompt_tokens"),
        ({"inflight_per_backend": -1}, "inflight_per_backend"),
        ({"colour": 1}, "colour"),
    ):
        answer = await asks(plane, **question)
        assert (answer.status, answer.error["field"]) == (400, field), question
    twice = b'{"model":"assistant","body":{"stream":true,"stream":false}}'
    answer = await plane.call("POST", DRY_RUN, raw=twice)
    assert (answer.status, answer.error["field"]) == (400, "body.stream")


def test_endpoints_are_those_of_proxies() -> None:
    assert set(get_args(Endpoint)) == {one.path for one in ENDPOINTS}
    assert {one.path for one in ENDPOINTS if one.generates} == GENERATES
    anthropic = {one.path for one in ENDPOINTS if one.dialect == "anthropic"}
    assert anthropic == {path for path in get_args(Endpoint) if path.startswith("/messages")}
