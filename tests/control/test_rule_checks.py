from __future__ import annotations

import pytest

from fastllm_control.errors import Invalid
from fastllm_control.forms import RuleForm, Target
from fastllm_control.rule_checks import refuse_unfit
from fastllm_shared.snapshot import Conditions

A = (Target("a"),)

UNFIT = [
    (RuleForm(action="deny"), "deny_status"),
    (RuleForm(action="jump"), "jump"),
    (RuleForm(targets=A, deny_status=403), "deny_status"),
    (RuleForm(targets=A, deny_message="no"), "deny_message"),
    (RuleForm(targets=A, jump="b"), "jump"),
    (RuleForm(action="deny", deny_status=403, targets=A), "targets"),
    (RuleForm(action="deny", deny_status=403, policy="weighted"), "policy"),
    (RuleForm(action="deny", deny_status=403, jump="b"), "jump"),
    (RuleForm(action="jump", jump="b", targets=A), "targets"),
    (RuleForm(action="jump", jump="b", policy="cheapest"), "policy"),
    (RuleForm(action="jump", jump="b", deny_status=403), "deny_status"),
    (RuleForm(targets=(*A, Target("b"), Target("a", 2))), "targets[2].target"),
    (
        RuleForm(targets=A, when=Conditions(min_prompt_tokens=2, max_prompt_tokens=1)),
        "when.min_prompt_tokens",
    ),
    (RuleForm(targets=A, when=Conditions(timezone="Mars/Base")), "when.timezone"),
    (RuleForm(targets=A, when=Conditions(after="08:00", timezone="Mars/Base")), "when.timezone"),
    (RuleForm(targets=A, when=Conditions(days=())), "when.days"),
]


@pytest.mark.parametrize(("form", "field"), UNFIT)
def test_what_is_unfit_is_named(form: RuleForm, field: str) -> None:
    for at in ("", "rules[3]."):
        with pytest.raises(Invalid) as refused:
            refuse_unfit(form, at)
        assert refused.value.field == at + field


def test_what_is_fit_passes() -> None:
    for form in (
        RuleForm(),
        RuleForm(tag="x", policy="cheapest"),
        RuleForm(targets=A, policy="cheapest", tag="x"),
        RuleForm(action="deny", deny_status=413),
        RuleForm(action="deny", deny_status=403, deny_message="not today", tag="x"),
        RuleForm(action="jump", jump="b", tag="x", when=Conditions(stream=True)),
    ):
        refuse_unfit(form)
