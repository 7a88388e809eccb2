"""A whole configuration, as a team has one: 40 models and everything around them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fastllm_control.declared import text
from fastllm_control.litellm import reading
from fastllm_control.litellm.converting import Converted, convert

FILE = Path(__file__).parent / "realistic.yaml"
ENVIRON = {
    "ENGINE_A": "http://127.0.0.1:9001/v1",
    "ENGINE_B": "http://127.0.0.1:9002/v1",
    "ENGINE_C": "http://127.0.0.1:9003/v1",
    "ENGINE_DOWN": "http://127.0.0.1:9/v1",
    "LITELLM_MASTER_KEY": "sk-1234",
}
NOT_CARRIED = """\
credential_list[0].credential_info
environment_variables.REDIS_HOST
general_settings.alerting
general_settings.database_url
general_settings.something_new
guardrails[0]
litellm_settings.cache
litellm_settings.cache_params
litellm_settings.content_policy_fallbacks
litellm_settings.drop_params
litellm_settings.success_callback
mcp_servers.search
model_list[0].model_info.mode
model_list[10]
model_list[11]
model_list[1].model_info.mode
model_list[3].litellm_params.max_retries
model_list[4].model_info.id
model_list[4].model_info.mode
model_list[5].litellm_params.api_version
model_list[5].model_info.base_model
model_list[6].litellm_params.api_version
model_list[6].model_info.base_model
model_list[8].litellm_params.temperature
model_list[9]
router_settings.allowed_fails
router_settings.context_window_fallbacks[1].frail
router_settings.cooldown_time
router_settings.fallbacks[2].nova
router_settings.model_group_alias.default-chat.hidden
router_settings.model_group_alias.lost
router_settings.num_retries
router_settings.redis_host
x-defaults.stream_timeout
x-defaults.timeout
"""


@pytest.fixture(scope="module")
def realistic() -> Converted:
    return convert(reading.read(FILE), ENVIRON)


def test_each_field_that_is_not_carried_is_named(realistic: Converted) -> None:
    assert sorted(finding.path for finding in realistic.findings) == NOT_CARRIED.split()
    assert realistic.errors == ()


def test_it_is_a_document_that_can_be_written_and_read(realistic: Converted) -> None:
    assert text.read(text.write(realistic.document)).document == realistic.document
    names = [model.name for model in realistic.document.frontend_models or ()]
    assert len(names) == 40 - 3 - 3 + 2  # further entries of a name, not carried ones, aliases
    assert {"gpt-4", "default-chat", "gpt-4o", "chat", "team-25"} <= set(names)
    assert realistic.access_groups == {"premium": ("gpt-4o",)}


def test_no_secret_is_said(realistic: Converted) -> None:
    said = f"{realistic.document} {realistic.findings} {realistic.warnings} {realistic!r}"
    assert "canary" not in said
    assert "sk-1234" not in said
    assert "ds-canary-variable-secret" in realistic.secrets.values()
    assert "gsk-canary-literal-secret" in realistic.secrets.values()


def test_a_weak_master_key_is_warned_of(realistic: Converted) -> None:
    assert realistic.master_key == "sk-1234"
    assert [w for w in realistic.warnings if "weak" in w]


def test_without_its_variables_it_names_them() -> None:
    found = convert(reading.read(FILE), {})
    assert {str(error).rpartition(" variable ")[2] for error in found.errors} == {
        f"{name} is not set" for name in ENVIRON
    }


@pytest.mark.parametrize(
    ("strategy", "policy"),
    [
        ("least-busy", "least-loaded"),
        ("cost-based-routing", "cheapest"),
        ("simple-shuffle", None),
        ("new", None),
    ],
)
def test_strategies(strategy: str, policy: str | None) -> None:
    model = {"model_name": "a", "litellm_params": {"model": "openai/a", "api_base": "http://e/v1"}}
    found = convert({"model_list": [model], "router_settings": {"routing_strategy": strategy}}, {})
    assert [entry.policy for entry in found.document.frontend_models or ()] == [policy]
    assert len(found.findings) == (strategy == "new")


@pytest.mark.parametrize("config", [{}, {"model_list": None}, {"model_list": []}, {"general_settings": None}])
def test_nothing_is_nothing(config: dict[str, Any]) -> None:
    found = convert(config, {})
    assert (found.document.frontend_models, found.findings, found.errors) == ((), (), ())


@pytest.mark.parametrize("config", [{"model_list": {}}, {"router_settings": 3}, {"model_list": [3]}])
def test_wrong_shapes_are_errors(config: dict[str, Any]) -> None:
    assert convert(config, {}).errors
