"""One entry of `model_list`."""

from __future__ import annotations

from typing import Any

import pytest

from fastllm_control.declared.document import SecretReference
from fastllm_control.litellm.deployments import Defaults, Deployment, deployment
from fastllm_control.litellm.findings import Report
from fastllm_control.litellm.values import Values

OWN = {"model": "openai/qwen", "api_base": "http://engine/v1"}


def read(
    params: Any, info: Any = None, name: Any = "chat", defaults: Defaults | None = None, **environ: str
) -> tuple[Deployment | None, Report]:
    report = Report()
    entry = {"model_name": name, "litellm_params": params, "model_info": info}
    found = deployment(entry, "model_list[0]", Values(environ, {}, report), report, defaults or Defaults())
    return found, report


def test_everything_that_is_carried() -> None:
    params = {
        **OWN,
        "api_key": "os.environ/KEY",
        "timeout": 60,
        "stream_timeout": "20",
        "max_parallel_requests": 8,
        "extra_headers": {"X-A": "b", "X-Key": "os.environ/SECOND"},
        "organization": "org",
        "input_cost_per_token": 1e-6,
        "weight": 2,
        "rpm": 10,
        "order": 1,
    }
    made, report = read(params, {"max_tokens": 100, "max_input_tokens": 200, "output_cost_per_token": "2e-6"})
    assert made is not None
    provider, backend = made.endpoint.provider("own"), made.backend("own")
    assert (provider.api_base, provider.kind) == ("http://engine/v1", "static")
    assert provider.upstream_api_key == SecretReference(env="KEY")
    assert provider.extra_headers == {
        "OpenAI-Organization": "org", "X-A": "b", "X-Key": SecretReference(env="SECOND"),
    }  # fmt: skip
    assert (backend.upstream_model, backend.admission_max_concurrent) == ("qwen", 8)
    assert (backend.response_timeout_seconds, backend.upstream_timeout_seconds) == (60.0, 20.0)
    assert made.facts.context_length == 200
    assert (made.facts.input_price_per_mtok, made.facts.output_price_per_mtok) == (1_000_000, 2_000_000)
    assert {name: int(share) for name, share in made.shares.items()} == {"weight": 2, "rpm": 10}
    assert (report.findings, report.errors) == ([], [])


def test_the_usual_variable_is_meant_where_no_key_stands() -> None:
    made, _ = read({"model": "groq/llama"})
    assert made is not None
    assert made.endpoint.upstream_api_key == SecretReference(env="GROQ_API_KEY")
    assert made.endpoint.provider("groq").kind == "cloud"
    own, _ = read(OWN, OPENAI_API_KEY="not for this engine")
    assert own is not None
    assert own.endpoint.upstream_api_key is None
    azure, _ = read({"model": "azure/x", "api_base": "https://t.openai.azure.com"}, AZURE_API_KEY="x")
    assert azure is not None
    assert azure.endpoint.upstream_api_key == SecretReference(env="AZURE_API_KEY")
    assert (azure.endpoint.auth_header, azure.endpoint.auth_scheme) == ("api-key", "")


def test_credentials_by_name_and_what_the_file_says_for_all() -> None:
    shared = Defaults({"team": {"api_base": "http://engine/v1", "api_key": "os.environ/T"}}, 30.0, 5.0)
    made, report = read({"model": "openai/x", "litellm_credential_name": "team"}, defaults=shared)
    assert made is not None
    assert made.endpoint.upstream_api_key == SecretReference(env="T")
    assert (made.response_timeout_seconds, made.upstream_timeout_seconds) == (30.0, 5.0)
    _, lost = read({**OWN, "litellm_credential_name": "lost"})
    assert [error.path for error in lost.errors] == ["model_list[0].litellm_params.litellm_credential_name"]
    assert report.errors == []


@pytest.mark.parametrize(
    ("params", "name", "word"),
    [
        ({"model": "bedrock/x"}, "a", "signed"),
        ({"model": "x/y", "api_base": "http://e"}, "a", "prefix"),
        ({"model": "hosted_vllm/y"}, "a", "api_base"),
        ({"model": "openai/*"}, "openai/*", "wildcards"),
        ({}, "a", "litellm_params.model"),
        (OWN, None, "model_name"),
        (OWN, " a", "cannot be a name"),
        (OWN, "0190a6f5-0000-7000-8000-000000000000", "UUID"),
        ({**OWN, "extra_headers": {"Host": "x"}}, "a", "cannot be served"),
    ],
)
def test_what_cannot_be_carried_is_one_finding(params: Any, name: Any, word: str) -> None:
    made, report = read(params, name=name)
    assert made is None
    (finding,) = report.findings
    assert finding.path == "model_list[0]"
    assert word in finding.reason


def test_a_variable_that_is_not_set_and_a_wrong_shape_are_errors() -> None:
    _, report = read({"model": "openai/x", "api_base": "os.environ/LOST"})
    assert [error.path for error in report.errors] == ["model_list[0].litellm_params.api_base"]
    _, report = read("text")
    assert [error.path for error in report.errors] == ["model_list[0].litellm_params"]


def test_every_other_field_is_named() -> None:
    made, report = read(
        {**OWN, "api_version": "1", "brand_new": 2}, {"mode": "chat", "access_groups": ["a", 3]}
    )
    assert made is not None
    assert made.access_groups == ("a",)
    assert [finding.path.rpartition(".")[2] for finding in report.findings] == [
        "api_version",
        "brand_new",
        "mode",
    ]
