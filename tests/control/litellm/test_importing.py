"""An import, applied: once, twice, and after an edit."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from sqlalchemy import text

from fastllm_control.declared.document import DeclaredBudget, DeclaredLimits
from fastllm_control.errors import Conflict
from fastllm_control.litellm import database as litellm_database
from fastllm_control.litellm import holders as holding
from fastllm_control.litellm.findings import Report
from fastllm_control.litellm.holders import Holders
from fastllm_control.litellm.importing import MASTER, Wanted
from fastllm_control.services import frontend_models, keys
from fastllm_control.transaction import Database
from fastllm_shared.keys import digest_of
from tests.fakes.access import Access
from tests.fakes.configuration import ACTOR
from tests.fakes.declared import Files
from tests.fakes.litellm import CI_KEY, ENVIRON, MASTER_KEY, TEAM_KEY, fill, imported, realistic

NOTHING = {"general_settings": {"master_key": "os.environ/LITELLM_MASTER_KEY"}}


async def whole(access: Access) -> dict[str, list[Any]]:
    """Everything that an import could change, and the version."""
    tables = ("providers", "provider_models", "backends", "pools", "pool_members", "frontend_models",
              "default_targets", "routing_rules", "principals", "roles", "role_permissions", "api_keys",
              "limits", "budgets", "audit_events", "config", "settings")  # fmt: skip
    return {name: sorted(map(str, await access.rows(f"SELECT * FROM {name}"))) for name in tables}


async def from_database(url: str) -> Holders:
    tables = await litellm_database.read(url)
    models = ["chat", "team-00", "gpt-4o"]
    now = datetime.datetime.now(datetime.UTC)
    return holding.holders(tables, models, {}, now, Report())


async def test_a_whole_configuration_and_again(database: Database, access: Access) -> None:
    first = await imported(database, realistic())
    assert first.plan.version is not None
    created = [step for step in first.plan.steps if step.action == "create"]
    assert len([step for step in created if step.kind == "frontend_model"]) == 36
    assert "+ key LiteLLM master key of litellm/master, scope admin" in first.keys
    assert "canary" not in first.printed()
    assert MASTER_KEY not in first.printed()
    before = await whole(access)
    again = await imported(database, realistic())
    assert (again.plan.steps, again.keys, again.plan.version) == ((), (), None)
    assert await whole(access) == before
    assert not [row for row in before["audit_events"] if "canary" in row or MASTER_KEY in row]


async def test_a_dry_run_leaves_nothing(database: Database, access: Access) -> None:
    before = await whole(access)
    assert (await imported(database, realistic(), dry_run=True)).plan.steps
    assert await whole(access) == before


async def test_after_an_edit_it_converges(database: Database, access: Access) -> None:
    await imported(database, realistic())
    config = realistic()
    gone = {"team-03", "gpt-4o", "literal"}
    config["model_list"] = [entry for entry in config["model_list"] if entry["model_name"] not in gone]
    config["model_list"][0]["litellm_params"]["rpm"] = 100
    config["router_settings"]["fallbacks"] = [{"frail": ["chat-large"]}]
    del config["router_settings"]["model_group_alias"]["gpt-4"]
    edited = await imported(database, config)
    deleted = {
        step.name for step in edited.plan.steps if step.action == "delete" and step.kind == "frontend_model"
    }
    assert deleted == {*gone, "gpt-4"}
    after = await whole(access)
    assert not [row for row in after["providers"] if "azure" in row]
    assert (await imported(database, config)).plan.steps == ()
    assert await whole(access) == after
    back = await imported(database, realistic())
    assert back.plan.steps
    assert (await imported(database, realistic())).plan.steps == ()


async def test_the_master_key_opens_the_admin_api_and_is_replaced(database: Database, access: Access) -> None:
    await imported(database, realistic())
    (row,) = await access.rows("SELECT digest, scope, prefix, disabled FROM api_keys")
    assert (row.digest, row.scope, row.disabled) == (digest_of(MASTER_KEY), "admin", False)
    assert len(row.prefix) < 12
    changed = {**ENVIRON, "LITELLM_MASTER_KEY": "sk-1234"}
    second = await imported(database, realistic(), changed)
    assert len(second.keys) == 2
    rows = await access.rows("SELECT prefix, disabled FROM api_keys ORDER BY id")
    assert [(row.prefix, row.disabled) for row in rows] == [(rows[0].prefix, True), ("sk", False)]
    assert "sk-1234" not in repr(Wanted(document=None, master_key="sk-1234"))  # type: ignore[arg-type]


async def test_what_others_made_is_never_touched(database: Database, access: Access, files: Files) -> None:
    theirs = "format: 1\nfrontend_models:\n- name: claude\n  policy: cheapest\n- name: own\n"
    await files.apply(theirs)
    before = await whole(access)
    with pytest.raises(Conflict, match="frontend model claude"):
        await imported(database, realistic())
    assert await whole(access) == before
    await imported(database, realistic(), take_over=True)
    await imported(database, NOTHING)
    left = await access.rows("SELECT name FROM frontend_models")
    assert [row.name for row in left] == ["own"]


async def test_a_provider_stays_that_models_of_others_use(database: Database, files: Files) -> None:
    await imported(database, realistic())
    await files.apply(
        "format: 1\nprovider_models:\n- name: mine\n  backends: [{provider: groq, upstream_model: x}]\n"
    )
    last = await imported(database, NOTHING)
    assert [warning for warning in last.plan.warnings if "groq stays" in warning]


async def test_what_is_gone_already_is_no_fault(database: Database) -> None:
    await imported(database, realistic())
    async with database.begin(ACTOR) as tx:
        await frontend_models.delete(tx, "team-00")
    assert (await imported(database, NOTHING)).plan.steps


async def test_the_last_way_of_administering_is_not_taken_away(database: Database, access: Access) -> None:
    await imported(database, realistic())
    before = await whole(access)
    with pytest.raises(Conflict, match="nobody could administer"):
        await imported(database, {"model_list": []})
    assert await whole(access) == before


async def test_keys_out_of_the_database(database: Database, access: Access, empty_database_url: str) -> None:
    await fill(empty_database_url)
    found = await from_database(empty_database_url)
    await imported(database, realistic(), holders=found)
    before = await whole(access)
    assert (await imported(database, realistic(), holders=found)).plan.version is None
    assert await whole(access) == before
    rows = await access.rows(
        "SELECT k.digest, p.name FROM api_keys k JOIN principals p ON p.id = k.principal_id"
    )
    assert {row.digest: row.name for row in rows} == {
        digest_of(CI_KEY): "litellm/key/ci",
        digest_of(TEAM_KEY): "litellm/team/research",
        digest_of(MASTER_KEY): MASTER,
    }
    without = await imported(database, realistic())
    assert (without.plan.steps, without.keys) == ((), ())


async def test_a_used_budget_is_never_rewound_and_a_removed_grant_is_revoked(
    database: Database, access: Access, empty_database_url: str
) -> None:
    await fill(empty_database_url)
    found = await from_database(empty_database_url)
    await imported(database, realistic(), holders=found)
    async with database.begin(ACTOR) as tx:
        await tx.session.execute(text("UPDATE budgets SET cost_used_micros = 4000000"))
    name = "litellm/key/ci"
    role = next(role for role in found.roles if role.name == name)
    less = Holders(
        tuple(
            type(role)(name=name, permissions=role.permissions[:1]) if one.name == name else one
            for one in found.roles
        ),
        tuple(
            type(one)(
                name=name,
                roles=(name,),
                limits=DeclaredLimits(requests_per_min=3),
                budget=DeclaredBudget(cost_total_micros=6_000_000, window="monthly"),
            )
            if one.name == name
            else one
            for one in found.principals
        ),
        found.keys,
    )
    await imported(database, realistic(), holders=less)
    ((used, cap),) = await access.rows("SELECT cost_used_micros, cost_total_micros FROM budgets")
    assert (used, cap) == (4_000_000, 6_000_000)
    granted = await access.rows(
        "SELECT resource FROM role_permissions JOIN roles ON roles.id = role_id WHERE name = 'litellm/key/ci'"
    )
    assert [row.resource for row in granted] == ["model/chat"]


async def test_a_key_that_is_gone_is_revoked_and_one_revoked_here_stays_so(
    database: Database, access: Access, empty_database_url: str
) -> None:
    await fill(empty_database_url)
    found = await from_database(empty_database_url)
    await imported(database, realistic(), holders=found)
    (row,) = await access.rows("SELECT id FROM api_keys WHERE name = 'ci'")
    async with database.begin(ACTOR) as tx:
        await keys.revoke(tx, row.id, datetime.datetime.now(datetime.UTC))
    await imported(database, realistic(), holders=found)
    rows = await access.rows("SELECT name FROM api_keys WHERE disabled")
    assert [row.name for row in rows] == ["ci"]
    none = await imported(database, realistic(), holders=Holders())
    assert [step.name for step in none.plan.steps if step.kind == "principal"] == [
        "litellm/key/ci", "litellm/team/research",
    ]  # fmt: skip
    assert [row.name for row in await access.rows("SELECT name FROM api_keys")] == ["LiteLLM master key"]
