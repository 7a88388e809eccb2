"""A file and a database: it becomes as the file says, once, wholly or not at all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fastllm_control.declared.problems import Broken
from fastllm_control.errors import ApiError, Conflict, Forbidden
from fastllm_control.repositories import declared
from tests.fakes.access import Access
from tests.fakes.configuration import ACTOR, Stock
from tests.fakes.declared import CLOSED, Files
from tests.fakes.engine import FakeEngine

FILE = f"""\
format: 1
providers:
- name: gpu-1
  api_base: {CLOSED}
  upstream_api_key: {{env: KEY}}
  extra_headers: {{x-team: {{env: HEADER}}, x-plain: as it is}}
  state: draining
  state_reason: moves
provider_models:
- name: qwen
  context_length: 4096
  backends:
  - {{provider: gpu-1, upstream_model: Q, unhealthy_after: 3}}
pools:
- name: spill
  policy: round-robin
  members:
  - {{provider_model: qwen, weight: 2}}
  - backend: {{provider: gpu-1, provider_model: qwen, upstream_model: Q}}
frontend_models:
- name: assistant
  targets: [{{target: qwen, weight: 3}}, {{target: spill}}]
  rules:
  - {{action: jump, jump: other, when: {{stream: true}}}}
  - {{action: deny, deny_status: 403, deny_message: at night, when: {{after: 22:00, before: 06:00}}}}
- name: other
  policy: cheapest
  targets: [{{target: qwen}}]
fallback_model: other
roles:
- name: readers
  permissions: [{{verb: "model:invoke", resource: model/assistant}}, {{verb: "usage:read"}}]
principals:
- name: team-a
  roles: [readers, viewer]
  limits: {{requests_per_min: 5}}
  budget: {{tokens_total: 1000, window: daily, timezone: Europe/Brussels}}
"""
SECRETS = {"KEY": "canary-key", "HEADER": "canary-header"}
SECTIONS = ("providers", "provider_models", "pools", "frontend_models", "roles", "principals")
OBJECTS = {
    "provider gpu-1",
    "provider model qwen",
    "pool spill",
    "frontend model assistant",
    "frontend model other",
    "role readers",
    "principal team-a",
}


async def test_a_file_into_an_empty_database(files: Files, access: Access) -> None:
    plan = await files.apply(FILE, SECRETS)
    lines = plan.printed().splitlines()
    assert {line[2:] for line in lines if line[0] == "+"} == OBJECTS
    assert "~ fallback model other" in lines
    assert "! the provider gpu-1 does not answer: the connection is refused" in lines
    assert plan.version == await access.version()
    served = await files.served()
    assert [entry["credential"] for entry in served["providers"]] == ["canary-key"]
    assert served["providers"][0]["extra_headers"] == (("x-team", "canary-header"), ("x-plain", "as it is"))
    assert [entry["state"] for entry in served["backends"]] == ["draining"]
    assert served["fallback_model"] == "other"


async def test_one_audit_event_for_each_object_and_no_secret_in_any(files: Files, access: Access) -> None:
    plan = await files.apply(FILE, SECRETS)
    events = await access.rows("SELECT action, target_name, changes, version FROM audit_events")
    assert sorted(event.action for event in events) == [
        "fallback_model.set",
        "frontend_model.create",
        "frontend_model.create",
        "pool.create",
        "principal.create",
        "provider.create",
        "provider_model.create",
        "role.create",
    ]
    assert {event.version for event in events} == {plan.version}
    assert "canary" not in repr(events)
    assert "canary" not in repr(plan)
    assert "canary" not in await files.export()


async def test_twice_changes_nothing(files: Files, access: Access) -> None:
    first = await files.apply(FILE, SECRETS)
    events = await access.audited()
    for secrets in (SECRETS, {}):
        again = await files.apply(FILE, secrets, prune=True)
        assert (again.steps, again.version) == ((), None)
    assert again.printed().startswith("= nothing to change\n! the environment variable KEY is not set: ")
    assert await access.audited() == events
    assert await access.version() == first.version


async def test_a_dry_run_says_the_same_and_leaves_nothing(files: Files, access: Access) -> None:
    version = await access.version()
    tried = await files.apply(FILE, SECRETS, dry_run=True)
    assert tried.version is None
    assert (await access.audited(), await access.version()) == ([], version)
    assert (await files.apply(FILE, SECRETS)).steps == tried.steps


@pytest.mark.parametrize(
    ("before", "after", "step", "action"),
    [
        ("weight: 3", "weight: 4", "~ frontend model assistant: targets", "frontend_model.update"),
        ("at night", "late", "~ frontend model assistant: rules", "frontend_model.set_rules"),
        (
            "unhealthy_after: 3",
            "unhealthy_after: 4",
            "~ backend gpu-1/qwen as Q: unhealthy_after",
            "backend.update",
        ),
        ("upstream_model: Q", "upstream_model: R", "+ backend gpu-1/qwen as R", "backend.create"),
        ("round-robin", "cheapest", "~ pool spill: policy", "pool.update"),
        (
            "{provider_model: qwen, weight: 2}",
            "{provider_model: qwen}",
            "~ pool spill: members",
            "pool.update",
        ),
        ("4096", "8192", "~ provider model qwen: context_length", "provider_model.update"),
        ("  state: draining\n", "", "~ provider gpu-1: state", "provider.update"),
        ("moves", "moved", "~ provider gpu-1: state_reason", "provider.update"),
        ("{env: KEY}", "{env: HEADER}", "~ provider gpu-1: upstream_api_key", "provider.update"),
        ("as it is", "otherwise", "~ provider gpu-1: extra_headers", "provider.update"),
        (
            "fallback_model: other",
            "fallback_model: assistant",
            "~ fallback model assistant",
            "fallback_model.set",
        ),
        ("fallback_model: other", "fallback_model:", "~ fallback model (cleared)", "fallback_model.set"),
        (', {verb: "usage:read"}', "", "~ role readers: permissions", "role.drop_permission"),
        ("[readers, viewer]", "[viewer, operator]", "~ principal team-a: roles", "principal.update"),
        ("requests_per_min: 5", "tokens_per_min: 7", "~ principal team-a: limits", "limits.set"),
        ("  limits: {requests_per_min: 5}\n", "", "~ principal team-a: limits", "limits.set"),
        ("tokens_total: 1000", "tokens_total: 2000", "~ principal team-a: budget", "budget.set"),
    ],
)
async def test_an_edit_converges(
    files: Files, access: Access, before: str, after: str, step: str, action: str
) -> None:
    await files.apply(FILE, SECRETS)
    known = len(await access.audited())
    edited = FILE.replace(before, after)
    assert edited != FILE
    plan = await files.apply(edited, SECRETS)
    assert step in plan.printed().splitlines()
    assert action in (await access.audited())[known:]
    assert (await files.apply(edited, SECRETS)).steps == ()
    # And what it was, from what it is.
    await files.apply(FILE, SECRETS)
    assert (await files.apply(FILE, SECRETS)).steps == ()


async def test_a_used_budget_is_never_rewound(files: Files, access: Access) -> None:
    await files.apply(FILE, SECRETS)
    async with files.database.begin(ACTOR) as tx:
        for row in (await declared.read(tx.session)).budgets.values():
            row.tokens_used = 123
    await files.apply(FILE.replace("tokens_total: 1000", "tokens_total: 2000"), SECRETS)
    ((used, total),) = await access.rows("SELECT tokens_used, tokens_total FROM budgets")
    assert (used, total) == (123, 2000)


async def test_sections_that_are_absent_are_left_alone_and_prune_takes_what_is_not_named(
    files: Files, access: Access
) -> None:
    await files.apply(FILE, SECRETS)
    await access.key("team-a")
    assert (await files.apply("format: 1\n", prune=True)).steps == ()
    empty = "format: 1\n" + "".join(f"{name}: []\n" for name in SECTIONS)
    assert (await files.apply(empty)).steps == ()
    plan = await files.apply(empty, prune=True)
    assert plan.printed().splitlines() == [
        "- principal team-a (with 1 key)",
        "- role readers",
        "- frontend model assistant",
        "- frontend model other",
        "- pool spill",
        "- provider model qwen (with 1 backend)",
        "- provider gpu-1 (with its backends of qwen)",
    ]
    names = await access.rows("SELECT name FROM roles ORDER BY name")
    assert [row.name for row in names] == ["admin", "inference", "operator", "viewer"]
    assert (await files.apply(empty, prune=True)).steps == ()


async def test_the_last_administrator_is_not_pruned(files: Files, access: Access) -> None:
    await access.admin("root")
    with pytest.raises(Conflict) as refused:
        await files.apply(FILE, SECRETS, prune=True)
    assert (refused.value.code, refused.value.field) == ("last_administrator", "principals")
    assert await access.rows("SELECT 1 FROM providers") == []
    handed_over = (
        "format: 1\nprincipals:\n- {name: root, kind: user}\n- {name: other, kind: user, roles: [admin]}\n"
    )
    with pytest.raises(Conflict):
        await files.apply(handed_over)  # the other one cannot prove who it is
    await access.admin("other")
    assert (await files.apply(handed_over)).printed() == "~ principal root: roles\n"


async def test_circles_that_only_the_order_would_make_are_none(files: Files) -> None:
    await files.apply(FILE, SECRETS)
    turned = FILE.replace("jump: other", "jump: X").replace("name: other", "name: assistant", 1)
    turned = turned.replace("name: assistant", "name: other", 1).replace("jump: X", "jump: assistant")
    plan = await files.apply(turned, SECRETS)
    assert {step.name for step in plan.steps} == {"assistant", "other"}
    assert (await files.apply(turned, SECRETS)).steps == ()


async def test_a_real_circle_is_refused_with_its_line(files: Files, access: Access) -> None:
    circle = FILE.replace("  policy: cheapest\n", "  rules:\n  - {action: jump, jump: assistant}\n")
    with pytest.raises(ApiError) as refused:
        await files.apply(circle, SECRETS)
    assert refused.value.field == "frontend_models[1].rules[0].jump"
    assert refused.value.message.startswith("line 28, frontend_models[1].rules[0].jump: these jumps")
    assert await access.audited() == []


async def test_new_providers_are_dialled_at_once_and_their_condition_is_what_was_found(
    files: Files, access: Access
) -> None:
    async with FakeEngine.start() as engine:
        entries = "".join(f"- {{name: gpu-{n}, api_base: '{engine.url}'}}\n" for n in range(5))
        text = f"format: 1\nproviders:\n{entries}- {{name: off, api_base: '{CLOSED}'}}\n"
        plan = await files.apply(text)
    assert plan.warnings == ("the provider off does not answer: the connection is refused",)
    found = await access.rows("SELECT name, condition FROM providers ORDER BY name")
    assert [row.condition for row in found] == ["ok"] * 5 + ["unreachable"]


async def test_leased_providers_and_what_they_serve_are_left_alone(
    files: Files, stock: Stock, access: Access
) -> None:
    await stock.provider("node-1", kind="dynamic")
    await stock.model("llama", "node-1")
    before = await access.audited()
    text = "format: 1\nproviders: []\nprovider_models: []\n"
    plan = await files.apply(text, prune=True)
    assert (
        plan.printed() == "= nothing to change\n! the provider model llama stays: leased providers serve it\n"
    )
    priced = "format: 1\nprovider_models:\n- {name: llama, input_price_per_mtok: 5}\n"
    assert (await files.apply(priced)).printed() == "~ provider model llama: input_price_per_mtok\n"
    assert len((await files.served())["backends"]) == 1
    assert len(await access.audited()) == len(before) + 1


async def test_members_of_pools_outlive_their_models_as_over_the_api(files: Files) -> None:
    await files.apply(FILE, SECRETS)
    gone = FILE.partition("provider_models:")[0] + "provider_models: []\n"
    plan = await files.apply(gone, SECRETS, prune=True)
    assert plan.printed().splitlines()[0] == "- provider model qwen (with 1 backend)"
    text = await files.export()
    assert "members:\n  - provider_model: qwen\n    weight: 2\n" in text
    assert (await files.apply(text, prune=True)).steps == ()
    again = await files.apply(FILE, SECRETS)
    assert "~ pool spill: members" in again.printed().splitlines()
    assert len((await files.served())["pools"][0]["members"]) == 1


async def test_what_an_engine_said_of_its_context_length_is_not_fought_over(
    files: Files, access: Access, stock: Stock
) -> None:
    await stock.model("llama")
    await access.rows("SELECT 1")
    async with files.database.begin(ACTOR) as tx:
        for row in (await declared.read(tx.session)).models:
            row.context_length = 4096
    assert (await files.apply("format: 1\nprovider_models:\n- name: llama\n")).steps == ()
    assert "context_length: 4096" in await files.export()


@pytest.mark.parametrize(
    ("held", "text", "lacking"),
    [
        ((), "format: 1\nproviders:\n- {name: a, api_base: 'http://127.0.0.1:9/v1'}\n", "config:write"),
        ((("config:write", "*"),), "format: 1\nprincipals:\n- name: a\n", "access:write"),
        ((("access:write", "*"),), FILE, "config:write"),
    ],
)
async def test_an_apply_needs_all_that_its_plan_touches(
    files: Files, access: Access, held: Any, text: str, lacking: str
) -> None:
    role = await access.role("some", *held)
    caller = Files(files.database, actor=await access.principal("caller", role))
    before = await access.audited()
    with pytest.raises(Forbidden, match=lacking):
        await caller.apply(text, SECRETS)
    assert await access.audited() == before


async def test_nobody_grants_by_a_file_more_than_they_hold(files: Files, access: Access) -> None:
    role = await access.role("clerks", ("access:write", "*"))
    caller = Files(files.database, actor=await access.principal("caller", role))
    for text, field in (
        (
            "format: 1\nroles:\n- name: x\n  permissions: [{verb: 'config:write'}]\n",
            "roles[0].permissions[0]",
        ),
        (
            "format: 1\nprincipals:\n- {name: caller, kind: user, roles: [clerks, admin]}\n",
            "principals[0].roles[1]",
        ),
    ):
        with pytest.raises(Forbidden) as refused:
            await caller.apply(text)
        assert (refused.value.code, refused.value.field) == ("more_than_held", field)
        assert refused.value.message.startswith("line ")


async def test_two_at_once_are_one_after_the_other(files: Files, access: Access) -> None:
    other = FILE.replace("weight: 3", "weight: 5").replace("tokens_total: 1000", "tokens_total: 7")
    plans = await asyncio.gather(*(files.apply(text, SECRETS) for text in (FILE, other, FILE, other)))
    made = [plan for plan in plans if any(step.action == "create" for step in plan.steps)]
    assert len(made) == 1
    versions = [plan.version for plan in plans if plan.version is not None]
    assert len(set(versions)) == len(versions)
    assert await access.version() == max(versions)
    assert [(await files.apply(text, SECRETS, dry_run=True)).steps for text in (FILE, other)].count(()) == 1


async def test_a_refusal_of_the_last_step_leaves_nothing_of_the_others(files: Files, access: Access) -> None:
    version = await access.version()
    broken = FILE.replace("tokens_total: 1000, ", "")
    with pytest.raises(ApiError, match=r"line 37, principals\[0\]\.budget\.tokens_total: a budget caps"):
        await files.apply(broken, SECRETS)
    assert (await access.audited(), await access.version()) == ([], version)
    assert await access.rows("SELECT 1 FROM providers UNION SELECT 1 FROM roles WHERE NOT built_in") == []


async def test_a_problem_names_its_line_before_anything_is_dialled(files: Files) -> None:
    async with FakeEngine.start() as engine:
        text = f"format: 1\nproviders:\n- {{name: a, api_base: '{engine.url}'}}\nroles: [{{name: admin}}]\n"
        with pytest.raises(Broken, match=r"line 4, roles\[0\].name: 'admin' is one of the built-in roles"):
            await files.apply(text)
        assert engine.requests == []
