"""One entry of `model_list`: which endpoint it dials, under which name, and what it says about the model."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import msgspec
from msgspec import Struct

from fastllm_control.declared.document import DeclaredBackend, DeclaredProvider, SecretReference
from fastllm_control.forms import Count, Seconds, Tokens
from fastllm_control.litellm import upstreams
from fastllm_control.litellm.findings import Fields, Report
from fastllm_control.litellm.upstreams import Unfit, Upstream
from fastllm_control.litellm.values import Values
from fastllm_control.naming import Name
from fastllm_shared.ids import has_uuid_shape
from fastllm_shared.snapshot import Protocol

METRICS = ("weight", "rpm", "tpm")
"""What shares the requests among the entries of one name, the first that is there."""


class Defaults(Struct):
    """What the file says for all entries. `credentials` is what `litellm_credential_name` stands for."""

    credentials: Mapping[str, Mapping[str, Any]] = {}
    timeout: float | None = None
    stream_timeout: float | None = None


class Endpoint(Struct, frozen=True, kw_only=True):
    """What one provider is. `label` is what it would be called."""

    label: str
    api_base: str
    kind: str
    protocol: Protocol
    auth_header: str
    auth_scheme: str | None
    upstream_api_key: SecretReference | None
    extra_headers: tuple[tuple[str, str | SecretReference], ...]

    def identity(self) -> tuple[object, ...]:
        """What tells providers apart."""
        key = None if self.upstream_api_key is None else self.upstream_api_key.env
        headers = tuple(
            (name, value if isinstance(value, str) else value.env) for name, value in self.extra_headers
        )
        return (self.api_base, self.protocol, self.auth_header, self.auth_scheme, key, headers)

    def provider(self, name: str) -> DeclaredProvider:
        """Raises `msgspec.ValidationError` for what no provider may be."""
        plain = {field: msgspec.to_builtins(getattr(self, field)) for field in _COPIED}
        return msgspec.convert(
            {"name": name, **plain, "extra_headers": msgspec.to_builtins(dict(self.extra_headers))},
            DeclaredProvider,
        )


_COPIED = ("api_base", "kind", "protocol", "auth_header", "auth_scheme", "upstream_api_key")


class ModelFacts(Struct, frozen=True):
    """What a provider model says: entries that differ in it are different provider models."""

    context_length: int | None = None
    input_price_per_mtok: int | None = None
    output_price_per_mtok: int | None = None
    cached_input_price_per_mtok: int | None = None


class Deployment(Struct, frozen=True, kw_only=True):
    group: str
    path: str
    endpoint: Endpoint
    upstream_model: str
    facts: ModelFacts
    order: Decimal | None
    shares: Mapping[str, Decimal]
    upstream_timeout_seconds: float | None
    response_timeout_seconds: float | None
    admission_max_concurrent: int | None
    access_groups: tuple[str, ...]

    def backend(self, provider: str) -> DeclaredBackend:
        """Of the provider of that name."""
        return DeclaredBackend(
            provider=provider,
            upstream_model=self.upstream_model,
            upstream_timeout_seconds=self.upstream_timeout_seconds,
            response_timeout_seconds=self.response_timeout_seconds,
            admission_max_concurrent=self.admission_max_concurrent,
        )


def deployment(
    entry: object, path: str, values: Values, report: Report, defaults: Defaults
) -> Deployment | None:
    """`None` for an entry that cannot be carried; then it is reported as one."""
    fields = Fields(entry, path, report)
    group = fields.take("model_name")
    params = Fields(fields.take("litellm_params"), fields.at("litellm_params"), report)
    info = Fields(fields.take("model_info"), fields.at("model_info"), report)
    model = values.plain(params.take("model"), params.at("model"))
    wrong = _name_problem(group, model)
    if wrong is not None:
        report.not_carried(path, wrong)
        return None
    _add_credential(params, defaults, report)
    provider = params.take("custom_llm_provider")
    prefix, upstream_model = upstreams.split(str(model), provider if isinstance(provider, str) else None)
    api_base = values.plain(params.take("api_base") or params.take("base_url"), params.at("api_base"))
    found = upstreams.upstream(prefix, api_base)
    if isinstance(found, Unfit):
        report.not_carried(path, f"the model {group} as {model} cannot be served: {found.reason}")
        return None
    if found.note is not None:
        report.warn(path, found.note)
    made = Deployment(
        group=str(group),
        path=path,
        endpoint=_endpoint(found, prefix, api_base, params, values),
        upstream_model=upstream_model,
        facts=_facts(params, info, values),
        order=values.number(params.take("order"), params.at("order")),
        shares=_shares(params, values),
        **_timeouts(params, values, defaults),
        access_groups=_access_groups(info),
    )
    try:
        made.endpoint.provider("x")
        msgspec.convert(msgspec.to_builtins(made.backend("x")), DeclaredBackend)
    except msgspec.ValidationError as error:
        report.not_carried(path, f"the model {group} cannot be served: {error}")
        return None
    for rest in (params, info, fields):
        rest.close()
    return made


def _name_problem(group: object, model: object) -> str | None:
    if not isinstance(model, str) or not model:
        return "it has no litellm_params.model"
    if not isinstance(group, str):
        return "it has no model_name"
    if "*" in group or "*" in model:
        return "wildcards stand for models that nobody listed: list those that are used, one by one"
    try:
        msgspec.convert(group, Name)
    except msgspec.ValidationError as error:
        return f"its model_name cannot be a name here: {error}"
    return "its model_name has the shape of a UUID, which no name may have" if has_uuid_shape(group) else None


def _add_credential(params: Fields, defaults: Defaults, report: Report) -> None:
    name = params.take("litellm_credential_name")
    if name is None:
        return
    if name not in defaults.credentials:
        report.fail(params.at("litellm_credential_name"), "there is no such entry in credential_list")
        return
    params.add(defaults.credentials[name])


def _endpoint(found: Upstream, prefix: str, api_base: str | None, params: Fields, values: Values) -> Endpoint:
    key = values.secret(params.take("api_key"), params.at("api_key"))
    if (
        key is None
        and found.variable is not None
        and (not api_base or found.base is None)
        and (found.base is not None or values.has(found.variable))
    ):
        values.used.add(found.variable)
        key = SecretReference(env=found.variable)
    base = upstreams.address(found, api_base)
    headers: dict[str, str | SecretReference] = {}
    for name, value in params.mapping("extra_headers").items():
        is_reference = isinstance(value, str) and value.startswith("os.environ/")
        reference = values.secret(value, f"{params.at('extra_headers')}.{name}") if is_reference else None
        headers[str(name)] = str(value) if reference is None else reference
    organization = values.plain(params.take("organization"), params.at("organization"))
    if organization is not None:
        headers["OpenAI-Organization"] = str(organization)
    return Endpoint(
        label=_label(prefix, base, found),
        api_base=base,
        kind="cloud" if base == found.base and base.startswith("https:") else "static",
        protocol=found.protocol,
        auth_header=found.auth_header,
        auth_scheme=found.auth_scheme,
        upstream_api_key=key,
        extra_headers=tuple(sorted(headers.items())),
    )


def _label(prefix: str, base: str, found: Upstream) -> str:
    if base == found.base:
        return prefix
    host = base.partition("://")[2].partition("/")[0].rpartition("@")[2]
    return f"{prefix}/{host.partition('.')[0] if found.suffix == '/openai/v1' else host}"[:150]


def _facts(params: Fields, info: Fields, values: Values) -> ModelFacts:
    def price(name: str) -> int | None:
        # Both places are taken, the first counts, as in LiteLLM.
        texts = [(fields.take(name), fields.at(name)) for fields in (params, info)]
        value, path = next((text for text in texts if text[0] is not None), (None, ""))
        return values.price(value, path)

    context, shorter = info.take("max_input_tokens"), info.take("max_tokens")
    name = "max_tokens" if context is None else "max_input_tokens"
    path = info.at(name)
    figure = values.number(shorter if context is None else context, path)
    return ModelFacts(
        values.fitting(figure, Tokens, path),
        price("input_cost_per_token"),
        price("output_cost_per_token"),
        price("cache_read_input_token_cost"),
    )


def _shares(params: Fields, values: Values) -> Mapping[str, Decimal]:
    found = {}
    for name in METRICS:
        value = values.number(params.take(name), params.at(name))
        if value is not None and value >= 0:
            found[name] = value
    return found


def _timeouts(params: Fields, values: Values, defaults: Defaults) -> dict[str, Any]:
    whole, stream = seconds(params, "timeout", values), seconds(params, "stream_timeout", values)
    whole = defaults.timeout if whole is None else whole
    limit, path = params.take("max_parallel_requests"), params.at("max_parallel_requests")
    return {
        "response_timeout_seconds": whole,
        "upstream_timeout_seconds": next(
            (t for t in (stream, defaults.stream_timeout, whole) if t is not None), None
        ),
        "admission_max_concurrent": values.fitting(values.number(limit, path), Count, path),
    }


def seconds(fields: Fields, name: str, values: Values) -> float | None:
    """A field that is a duration."""
    path = fields.at(name)
    found = values.fitting(values.number(fields.take(name), path), Seconds, path)
    return None if found is None else float(found)


def _access_groups(info: Fields) -> tuple[str, ...]:
    groups = info.take("access_groups")
    return tuple(name for name in groups if isinstance(name, str)) if isinstance(groups, list) else ()
