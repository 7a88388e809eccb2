"""Keys, teams, users and budgets of LiteLLM → principals."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from fastllm_control.access import Permission
from fastllm_control.declared.document import DeclaredBudget, DeclaredLimits
from fastllm_control.litellm.findings import Report
from fastllm_control.litellm.holders import Holders, Tables, holders

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
DIGEST = "ab" * 32


def key(number: int = 0, **fields: Any) -> dict[str, Any]:
    return {"token": f"{number:02x}" * 32, "key_alias": f"k{number}", "key_name": "sk-...wxyz", **fields}


def made(*keys: dict[str, Any], **tables: Any) -> tuple[Holders, Report]:
    report = Report()
    found = Tables(keys=keys, **tables)
    return holders(found, ["chat", "gpt-4o"], {"premium": ["gpt-4o"]}, NOW, report), report


def test_a_key_with_limits_has_a_principal_of_its_own() -> None:
    found, report = made(
        key(1, rpm_limit=10, tpm_limit=20, max_parallel_requests=3, max_budget=12.5, budget_duration="30d",
            models=["chat", "premium", "lost"])
    )  # fmt: skip
    (principal,) = found.principals
    assert principal.name == "litellm/key/k1"
    assert principal.limits == DeclaredLimits(requests_per_min=10, tokens_per_min=20, max_concurrent=3)
    assert principal.budget == DeclaredBudget(cost_total_micros=12_500_000, window="monthly")
    (role,) = found.roles
    assert (principal.roles, role.permissions) == (
        (role.name,),
        (Permission("model:invoke", "model/chat"), Permission("model:invoke", "model/gpt-4o")),
    )
    (imported,) = found.keys
    assert (imported.digest, imported.holder, imported.prefix) == ("01" * 32, principal.name, "sk-...wxyz")
    assert [finding.path for finding in report.findings] == ["LiteLLM_VerificationToken 'k1': models"]


def test_others_are_keys_of_their_team_or_user() -> None:
    teams = {"t": {"team_id": "t", "team_alias": "Team", "models": ["chat"], "rpm_limit": 5}}
    users = {"u": {"user_id": "u", "user_email": "a@b", "models": []}}
    keys = (
        key(1, team_id="t", user_id="u"),
        key(2, team_id="t", models=["all-team-models"]),
        key(3, user_id="u"),
        key(4),
        key(5, team_id="t", tpm_limit=9),
    )
    found, report = made(*keys, teams=teams, users=users)
    assert [imported.holder for imported in found.keys] == [
        "litellm/team/Team", "litellm/team/Team", "litellm/user/a@b", "litellm/key/k4", "litellm/key/k5",
    ]  # fmt: skip
    by_name = {principal.name: principal for principal in found.principals}
    assert by_name["litellm/user/a@b"].roles == ("inference",)
    assert by_name["litellm/team/Team"].limits == DeclaredLimits(requests_per_min=5)
    assert by_name["litellm/key/k5"].roles == ("litellm/key/k5",)  # the models of its team
    assert [finding.path for finding in report.findings] == [
        "LiteLLM_VerificationToken 'k5': rpm_limit of its team"
    ]


def test_a_budget_by_name_counts() -> None:
    budgets = {"b": {"budget_id": "b", "max_budget": 1.0, "budget_duration": "7d"}}
    found, _ = made(key(1, budget_id="b"), budgets=budgets)
    assert found.principals[0].budget == DeclaredBudget(cost_total_micros=1_000_000, window="weekly")


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"max_budget": 3.0}, "begins anew"),
        ({"max_budget": 3.0, "budget_duration": "3h"}, "daily, weekly"),
        ({"max_budget": 0.0, "budget_duration": "1d"}, "out of range"),
        ({"rpm_limit": 0}, "at least 1"),
        ({"tpd_limit": 3}, "nothing here"),
    ],
)
def test_what_is_not_carried_of_a_key_is_named(fields: dict[str, Any], word: str) -> None:
    found, report = made(key(1, **fields))
    assert len(found.keys) == 1
    assert [word in finding.reason for finding in report.findings] == [True]


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"token": "pbkdf2:x"}, "no SHA-256"),
        ({"blocked": True}, "blocked"),
        ({"expires": NOW.replace(tzinfo=None)}, "expired"),
    ],
)
def test_keys_that_open_nothing_are_left_and_named(fields: dict[str, Any], word: str) -> None:
    found, report = made(key(1) | fields)
    assert (found.keys, found.principals) == ((), ())
    assert word in report.findings[0].reason


def test_names_are_made_of_any_text_and_each_once() -> None:
    found, _ = made(key(1, key_alias=" a\nb "), key(2, key_alias=" a\nb "), key(3, key_alias=None))
    names = [principal.name for principal in found.principals]
    assert names == ["litellm/key/a?b", "litellm/key/a?b-2", "litellm/key/030303030303"]
