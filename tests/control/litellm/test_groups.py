"""The entries of one model name."""

from __future__ import annotations

from typing import Any

from fastllm_control.litellm.deployments import Defaults, Deployment, deployment
from fastllm_control.litellm.findings import Report
from fastllm_control.litellm.groups import Group, Names, as_targets, group, providers_of
from fastllm_control.litellm.values import Values
from fastllm_shared.snapshot import Policy


def carried(*entries: dict[str, Any], policy: Policy | None = None) -> tuple[Group, Report]:
    report = Report()
    values = Values({}, {}, report)
    found: list[Deployment] = []
    for index, entry in enumerate(entries):
        info = {name: entry.pop(name) for name in ("max_tokens",) if name in entry}
        params = {"model": "openai/qwen", "api_base": f"http://engine-{index}/v1", **entry}
        whole = {"model_name": "chat", "litellm_params": params, "model_info": info}
        made = deployment(whole, f"model_list[{index}]", values, report, Defaults())
        assert made is not None
        found.append(made)
    providers, _ = providers_of(found)
    return group("chat", found, providers, Names(["chat"]), policy, report), report


def test_equal_entries_are_backends_of_one_provider_model() -> None:
    made, report = carried({}, {})
    assert [model.name for model in made.models] == ["chat"]
    assert [backend.provider for backend in made.models[0].backends] == ["openai/engine-0", "openai/engine-1"]
    assert (made.pools, made.targets, report.findings) == ((), ("chat",), [])


def test_shares_become_weights_of_a_pool() -> None:
    made, report = carried({"weight": 3}, {"weight": 1})
    (pool,) = made.pools
    assert (pool.name, pool.policy, made.targets) == ("chat/pool", "weighted", ("chat/pool",))
    assert [member.weight for member in pool.members] == [3, 1]
    assert report.warnings == []


def test_rates_are_shares_where_there_is_no_weight_and_no_limits_anywhere() -> None:
    made, report = carried({"rpm": 60, "tpm": 7}, {"rpm": 20})
    assert [member.weight for member in made.pools[0].members] == [60, 20]
    assert [finding.path for finding in report.findings] == ["model_list[0].litellm_params.tpm"]
    assert len(report.warnings) == 2
    alone, lone = carried({"rpm": 60})
    assert alone.pools == ()
    assert [finding.path for finding in lone.findings] == ["model_list[0].litellm_params.rpm"]
    _, other = carried({"weight": 2}, {"weight": 1}, policy="least-loaded")
    assert len(other.findings) == 2


def test_broken_shares_keep_their_proportion() -> None:
    made, _ = carried({"weight": 0.75}, {"weight": 0.25})
    assert [member.weight for member in made.pools[0].members] == [1000, 333]


def test_orders_are_targets_one_after_the_other_and_those_without_a_share_come_last() -> None:
    made, report = carried({"order": 2}, {"order": 1, "weight": 1}, {"order": 1, "weight": 0}, {})
    assert made.targets == ("chat", "chat/qwen", "chat/qwen-2", "chat/qwen-3")
    providers = [model.backends[0].provider for model in made.models]
    assert providers == [f"openai/engine-{n}" for n in (1, 2, 0, 3)]
    assert [warning.partition(":")[0] for warning in report.warnings] == ["model_list[2]"]
    assert [target.weight for target in as_targets(made.targets)] == [1, 0, 0, 0]
    assert [target.weight for target in as_targets(made.targets, spare=True)] == [0, 0, 0, 0]


def test_different_facts_are_different_provider_models_in_a_pool() -> None:
    made, _ = carried({"max_tokens": 8}, {"max_tokens": 4, "model": "openai/small"})
    assert [(model.name, model.context_length) for model in made.models] == [("chat", 8), ("chat/small", 4)]
    assert (made.context_length, made.pools[0].policy) == (4, "cache-affinity")
    unknown, _ = carried({"max_tokens": 8}, {})
    assert unknown.context_length is None


def test_the_same_twice_is_one_backend_with_both_shares() -> None:
    twice = {"api_base": "http://same/v1"}
    made, report = carried(twice | {"weight": 1}, twice | {"weight": 2}, {"weight": 1})
    assert [member.weight for member in made.pools[0].members] == [3, 1]
    assert len(report.warnings) == 1


def test_endpoints_are_told_apart_by_their_credential() -> None:
    report = Report()
    values = Values({}, {}, report)
    found = []
    for key in ("os.environ/A", "os.environ/B", "os.environ/A"):
        params = {"model": "groq/x", "api_key": key}
        entry = {"model_name": "m", "litellm_params": params}
        made = deployment(entry, "p", values, report, Defaults())
        assert made is not None
        found.append(made)
    _, providers = providers_of(found)
    assert [provider.name for provider in providers] == ["groq", "groq/B"]
