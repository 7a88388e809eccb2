"""Aliases and fallbacks."""

from __future__ import annotations

from typing import Any

from fastllm_control.declared.document import DeclaredFrontend
from fastllm_control.forms import Target
from fastllm_control.litellm import routes
from fastllm_control.litellm.findings import Report
from fastllm_control.litellm.groups import Group
from fastllm_control.litellm.routes import Routing

GROUPS = {
    name: Group(name, (), (), targets, context)
    for name, targets, context in (
        ("small", ("small",), 8192),
        ("large", ("large", "large/2"), None),
        ("other", ("other/pool",), None),
    )
}


def made(report: Report | None = None, **settings: Any) -> dict[str, DeclaredFrontend]:
    report = Report() if report is None else report
    routing = Routing()
    routing.fallbacks = routes.named_lists(settings.get("fallbacks"), "fallbacks", report)
    routing.context_fallbacks = routes.named_lists(
        settings.get("context_fallbacks"), "context_fallbacks", report
    )
    routing.default = ("default", tuple(settings.get("default", ())))
    routing.aliases = routes.aliases_of(settings.get("aliases", {}), "aliases", report)
    return {entry.name: entry for entry in routes.frontends(GROUPS, routing, report)}


def test_fallbacks_are_targets_for_failover_alone() -> None:
    found = made(fallbacks=[{"small": ["large", "other"]}])
    assert found["small"].targets == (
        Target("small", 1), Target("large", 0), Target("large/2", 0), Target("other/pool", 0),
    )  # fmt: skip
    assert (found["small"].retry_on_timeout, found["large"].retry_on_timeout) == (True, False)
    assert found["large"].targets == (Target("large", 1), Target("large/2", 0))


def test_those_for_all_are_for_models_that_no_list_names() -> None:
    found = made(fallbacks=[{"small": ["large"]}], default=["other"])
    assert [target.target for target in found["small"].targets] == ["small", "large", "large/2"]
    assert [target.target for target in found["large"].targets] == ["large", "large/2", "other/pool"]
    assert [target.target for target in found["other"].targets] == ["other/pool"]
    star = made(fallbacks={"*": ["small"]})
    assert [target.target for target in star["other"].targets] == ["other/pool", "small"]


def test_long_prompts_go_elsewhere_by_a_rule() -> None:
    report = Report()
    found = made(report, context_fallbacks=[{"small": ["other"]}, {"large": ["other"]}])
    (rule,) = found["small"].rules
    assert (rule.when.min_prompt_tokens, rule.targets) == (8193, (Target("other/pool", 1),))
    assert found["large"].rules == ()
    assert [finding.path for finding in report.findings] == ["context_fallbacks[1].large"]


def test_aliases_go_where_their_model_goes() -> None:
    report = Report()
    aliases = {
        "gpt": "small",
        "secret": {"model": "large", "hidden": True},
        "large": "small",
        "lost": "nowhere",
        "odd": 3,
        " x": "small",
        "a*": "small",
    }
    found = made(report, aliases=aliases, fallbacks=[{"gpt": ["other"]}])
    assert set(found) == {*GROUPS, "gpt", "secret"}
    assert found["gpt"].targets == (Target("small", 1), Target("other/pool", 0)) == found["small"].targets
    assert [finding.path for finding in report.findings] == [
        "aliases.secret.hidden", "aliases.odd", "aliases.large", "aliases.lost", "aliases. x", "aliases.a*",
    ]  # fmt: skip


def test_what_leads_nowhere_is_reported_once() -> None:
    report = Report()
    made(report, fallbacks=[{"small": ["nowhere", "small", {"model": "x"}]}, {"gone": ["small"]}, 3])
    assert [finding.path for finding in report.findings] == [
        "fallbacks[0].small[2]", "fallbacks[2]", "fallbacks[0].small", "fallbacks[1].gone",
    ]  # fmt: skip
