"""A LiteLLM configuration → a document of `declared`, and what cannot stand in one. Pure but for the
environment, which is handed in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from fastllm_control.declared.document import Document
from fastllm_control.litellm import groups as grouping
from fastllm_control.litellm import routes
from fastllm_control.litellm.deployments import Defaults, Deployment, deployment, seconds
from fastllm_control.litellm.findings import Fields, Finding, Report
from fastllm_control.litellm.groups import Group, Names
from fastllm_control.litellm.master_key import weakness
from fastllm_control.litellm.reasons import UNKNOWN, reason_for
from fastllm_control.litellm.routes import Routing
from fastllm_control.litellm.values import Values
from fastllm_shared.snapshot import Policy

STRATEGIES: Mapping[str, Policy | None] = {
    "simple-shuffle": None,
    "least-busy": "least-loaded",
    "latency-based-routing": "lowest-latency",
    "cost-based-routing": "cheapest",
    "usage-based-routing": "least-loaded",
    "usage-based-routing-v2": "least-loaded",
}
_NEAR = frozenset({"usage-based-routing", "usage-based-routing-v2"})


class Converted(Struct, frozen=True):
    """`secrets` has what the document's references stand for; `master_key` the key itself. `access_groups`
    are the models of each, for keys that name them."""

    document: Document
    secrets: Mapping[str, str]
    master_key: str | None
    access_groups: Mapping[str, tuple[str, ...]]
    findings: tuple[Finding, ...]
    warnings: tuple[str, ...]
    errors: tuple[Finding, ...]

    def __repr__(self) -> str:
        return f"Converted({len(self.findings)} findings)"  # without what is secret of it


def convert(config: Mapping[str, Any], environ: Mapping[str, str]) -> Converted:
    """What the file comes to. With `errors` it must not be applied."""
    report = Report()
    top = Fields(config, "", report)
    values = Values(environ, _variables(top), report)
    defaults = Defaults(_credentials(top, report))
    routing = _routing(top, values, defaults, report)
    deployments = [
        made
        for index, entry in enumerate(_list(top, "model_list", report))
        if (made := deployment(entry, f"model_list[{index}]", values, report, defaults)) is not None
    ]
    names, providers = grouping.providers_of(deployments)
    by_group: dict[str, list[Deployment]] = {}
    for entry in deployments:
        by_group.setdefault(entry.group, []).append(entry)
    taken = Names(list(by_group))
    found: dict[str, Group] = {
        name: grouping.group(name, entries, names, taken, routing.policy, report)
        for name, entries in by_group.items()
    }
    document = Document(
        format=1,
        providers=tuple(providers),
        provider_models=tuple(model for group in found.values() for model in group.models),
        pools=tuple(pool for group in found.values() for pool in group.pools),
        frontend_models=tuple(routes.frontends(found, routing, report)),
    )
    master_key = _general(top, values, report)
    _close(top, values, report)
    return Converted(
        document,
        values.secrets,
        master_key,
        _access_groups(deployments),
        tuple(report.findings),
        tuple(dict.fromkeys(report.warnings)),
        tuple(report.errors),
    )


def _variables(top: Fields) -> dict[str, str]:
    """The file's own variables; those that point back at the environment add nothing."""
    own = top.mapping("environment_variables")
    plain = {name: str(value) for name, value in own.items() if isinstance(value, str | int | float)}
    return {name: value for name, value in plain.items() if not value.startswith("os.environ/")}


def _credentials(top: Fields, report: Report) -> dict[str, Mapping[str, Any]]:
    found: dict[str, Mapping[str, Any]] = {}
    for index, entry in enumerate(_list(top, "credential_list", report)):
        fields = Fields(entry, f"credential_list[{index}]", report)
        found[str(fields.take("credential_name"))] = fields.mapping("credential_values")
        fields.close()
    return found


def _list(top: Fields, name: str, report: Report) -> list[Any]:
    value = top.take(name)
    if value is None or isinstance(value, list):
        return value or []
    report.fail(name, "a list is expected here")
    return []


def _routing(top: Fields, values: Values, defaults: Defaults, report: Report) -> Routing:
    router = Fields(top.take("router_settings"), "router_settings", report)
    general = Fields(top.take("litellm_settings"), "litellm_settings", report)
    routing = Routing()
    for fields, name in ((general, "request_timeout"), (router, "timeout")):
        defaults.timeout = seconds(fields, name, values) or defaults.timeout
    defaults.stream_timeout = seconds(router, "stream_timeout", values)
    strategy = router.take("routing_strategy")
    if strategy is not None:
        path = router.at("routing_strategy")
        if strategy in STRATEGIES:
            routing.policy = STRATEGIES[strategy]
            if strategy in _NEAR:
                report.warn(path, "the nearest that is here is used: the fewest requests in flight")
        else:
            report.not_carried(path, "there is no such policy here; the default is used")
    for fields in (general, router):  # what the router says wins
        routing.fallbacks |= routes.named_lists(fields.take("fallbacks"), fields.at("fallbacks"), report)
        path = fields.at("context_window_fallbacks")
        routing.context_fallbacks |= routes.named_lists(fields.take("context_window_fallbacks"), path, report)
        path = fields.at("default_fallbacks")
        if names := routes.names_in(fields.take("default_fallbacks"), path, report):
            routing.default = (path, names)
        for name in ("model_alias_map", "model_group_alias"):
            routing.aliases |= routes.aliases_of(fields.mapping(name), fields.at(name), report)
    router.close()
    general.close()
    return routing


def _general(top: Fields, values: Values, report: Report) -> str | None:
    general = Fields(top.take("general_settings"), "general_settings", report)
    value, path = general.take("master_key"), general.at("master_key")
    general.close()
    key = values.plain(value, path)
    if key is None or key == "":
        return None
    if key == value:
        report.warn(path, "it stands in the file: better name a variable, as os.environ/NAME")
    reason = weakness(str(key))
    if reason is not None:
        report.warn(path, f"the master key is weak: {reason}. It can do everything: make another one soon")
    return str(key)


def _close(top: Fields, values: Values, report: Report) -> None:
    for name in values.leftover_variables():
        report.not_carried(f"environment_variables.{name}", "nothing that was carried refers to it")
    for name, value in top.rest().items():
        reason = reason_for(name)
        inner: list[str] = []
        if isinstance(value, Mapping):
            inner = [Fields(value, name, report).at(str(key)) for key in value]
        elif isinstance(value, list):
            inner = [f"{name}[{index}]" for index in range(len(value))]
        for path in inner or [name]:
            leaf = path.rpartition(".")[2] if "." in path else name
            own = reason_for(leaf)
            report.not_carried(path, reason if own == UNKNOWN else own)


def _access_groups(deployments: list[Deployment]) -> dict[str, tuple[str, ...]]:
    found: dict[str, dict[str, None]] = {}
    for entry in deployments:
        for name in entry.access_groups:
            found.setdefault(name, {})[entry.group] = None
    return {name: tuple(models) for name, models in found.items()}
