"""Writes about rules, and what is asked about routing without a write."""

from __future__ import annotations

from tests.contract.audited import Scenario, Stage, Write


async def _rule(stage: Stage) -> tuple[str, str]:
    """(id, name of its frontend model)."""
    identity, name = await stage.frontend("a")
    body = {"when": {"stream": True}, "targets": [{"target": "a"}], "tag": "t"}
    made = await stage.call("POST", f"/admin/frontend-models/{identity}/rules", body)
    return made.json["id"], name


async def create_rule(stage: Stage) -> Write:
    identity, name = await stage.frontend("a")
    return Write(
        path=f"/admin/frontend-models/{identity}/rules",
        body={"when": {"min_prompt_tokens": 9}, "action": "deny", "deny_status": 413, "deny_message": "no"},
        action="rule.create",
        kind="rule",
        name=name,
        fields=frozenset({"position", "when", "action", "deny_status", "deny_message"}),
        again="another",
    )


async def set_rules(stage: Stage) -> Write:
    identity, name = await stage.frontend("a")
    return Write(
        path=f"/admin/frontend-models/{identity}/rules",
        body={"rules": [{"targets": [{"target": "b"}]}, {"action": "deny", "deny_status": 404}]},
        action="frontend_model.set_rules",
        kind="frontend_model",
        target_id=identity,
        name=name,
        fields=frozenset({"rules"}),
    )


async def change_rule(stage: Stage) -> Write:
    identity, name = await _rule(stage)
    return Write(
        path=f"/admin/rules/{identity}",
        body={"action": "deny", "deny_status": 403, "when": {}, "tag": None},
        action="rule.update",
        kind="rule",
        name=name,
        fields=frozenset({"action", "deny_status", "when", "tag", "targets"}),
    )


async def delete_rule(stage: Stage) -> Write:
    identity, name = await _rule(stage)
    return Write(
        path=f"/admin/rules/{identity}",
        action="rule.delete",
        kind="rule",
        target_id=identity,
        name=name,
        fields=frozenset({"position", "action", "when", "tag", "targets"}),
        again="refused",
    )


async def set_fallback(stage: Stage) -> Write:
    _, name = await stage.frontend("a")
    return Write(
        path="/admin/fallback-model",
        body={"frontend_model": name},
        action="fallback_model.set",
        kind="setting",
        name="fallback_model",
        fields=frozenset({"fallback_model"}),
    )


async def dry_run(stage: Stage) -> Write:
    _, name = await stage.frontend("a")
    return Write(path="/admin/routing/dry-run", body={"model": name, "principal": "root"})


WRITES: dict[str, Scenario] = {
    "POST /admin/frontend-models/{id}/rules": create_rule,
    "PUT /admin/frontend-models/{id}/rules": set_rules,
    "PATCH /admin/rules/{id}": change_rule,
    "DELETE /admin/rules/{id}": delete_rule,
    "PUT /admin/fallback-model": set_fallback,
    "POST /admin/routing/dry-run": dry_run,
}
