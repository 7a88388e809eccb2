"""Writes about what requests are routed to: providers, models, routes; and what proxies report."""

from __future__ import annotations

import msgspec

from fastllm_shared.health import HealthReport
from fastllm_shared.usage import encode_batch
from tests.contract.audited import Scenario, Stage, Write
from tests.fakes.control_plane import PROXY_TOKEN
from tests.fakes.usage import batch_of, make_event


async def create_provider(stage: Stage) -> Write:
    name = stage.fresh("provider")
    return Write(
        path="/admin/providers",
        body={
            "name": name,
            "api_base": stage.engine_url + "/v1",
            "upstream_api_key": stage.canary(),
            "extra_headers": {"x-token": stage.canary()},
        },
        action="provider.create",
        kind="provider",
        name=name,
        fields=frozenset(
            {
                "kind",
                "api_base",
                "protocol",
                "auth_header",
                "stream_usage",
                "condition",
                "upstream_api_key",
                "extra_headers",
            }
        ),
        again="refused",
    )


async def change_provider(stage: Stage) -> Write:
    identity, name = await stage.provider()
    return Write(
        path=f"/admin/providers/{identity}",
        body={
            "state": "draining",
            "state_reason": "moving",
            "upstream_api_key": stage.canary(),
            "extra_headers": {"x-other": stage.canary()},
        },
        action="provider.update",
        kind="provider",
        name=name,
        fields=frozenset({"state", "state_reason", "upstream_api_key", "extra_headers"}),
    )


async def delete_provider(stage: Stage) -> Write:
    identity, name = await stage.provider()
    return Write(
        path=f"/admin/providers/{identity}",
        action="provider.delete",
        kind="provider",
        target_id=identity,
        name=name,
        fields=frozenset({"api_base", "upstream_api_key"}),
        again="refused",
    )


async def probe_provider(stage: Stage) -> Write:
    identity, _ = await stage.provider()
    return Write(path=f"/admin/providers/{identity}/probe")


async def create_model(stage: Stage) -> Write:
    _, provider = await stage.provider()
    name = stage.fresh("model")
    return Write(
        path="/admin/provider-models",
        body={
            "name": name,
            "context_length": 32768,
            "backends": [
                {"provider": provider, "upstream_model": "one"},
                {"provider": provider, "upstream_model": "two", "unhealthy_after": 3},
            ],
        },
        action="provider_model.create",
        kind="provider_model",
        name=name,
        fields=frozenset({"context_length", "backends"}),
        again="refused",
    )


async def change_model(stage: Stage) -> Write:
    identity, _, _ = await stage.model()
    name = stage.fresh("renamed")
    return Write(
        path=f"/admin/provider-models/{identity}",
        body={"name": name, "input_price_per_mtok": 5, "context_length": None},
        action="provider_model.update",
        kind="provider_model",
        name=name,
        fields=frozenset({"name", "input_price_per_mtok"}),
    )


async def delete_model(stage: Stage) -> Write:
    _, provider = await stage.provider()
    identity, name, _ = await stage.model(provider)
    return Write(
        path=f"/admin/provider-models/{identity}",
        action="provider_model.delete",
        kind="provider_model",
        target_id=identity,
        name=name,
        fields=frozenset({"backends"}),
        again="refused",
    )


async def add_backend(stage: Stage) -> Write:
    _, provider = await stage.provider()
    identity, name, _ = await stage.model()
    return Write(
        path=f"/admin/provider-models/{identity}/backends",
        body={"provider": provider, "upstream_model": "fake-model", "unhealthy_after": 2},
        action="backend.create",
        kind="backend",
        name=f"{provider}/{name}",
        fields=frozenset({"upstream_model", "state", "unhealthy_after"}),
        again="refused",
    )


async def change_backend(stage: Stage) -> Write:
    _, provider = await stage.provider()
    _, name, (backend,) = await stage.model(provider)
    return Write(
        path=f"/admin/backends/{backend}",
        body={"upstream_timeout_seconds": 5, "state": "disabled"},
        action="backend.update",
        kind="backend",
        target_id=backend,
        name=f"{provider}/{name}",
        fields=frozenset({"upstream_timeout_seconds", "state"}),
    )


async def delete_backend(stage: Stage) -> Write:
    _, provider = await stage.provider()
    _, name, (backend,) = await stage.model(provider)
    return Write(
        path=f"/admin/backends/{backend}",
        action="backend.delete",
        kind="backend",
        target_id=backend,
        name=f"{provider}/{name}",
        fields=frozenset({"upstream_model"}),
        again="refused",
    )


async def create_frontend(stage: Stage) -> Write:
    name = stage.fresh("frontend")
    return Write(
        path="/admin/frontend-models",
        body={"name": name, "targets": [{"target": "a"}], "retry_on_timeout": True},
        action="frontend_model.create",
        kind="frontend_model",
        name=name,
        fields=frozenset({"retry_on_timeout", "targets"}),
        again="refused",
    )


async def change_frontend(stage: Stage) -> Write:
    identity, _ = await stage.frontend("a")
    name = stage.fresh("renamed")
    return Write(
        path=f"/admin/frontend-models/{identity}",
        body={"name": name, "policy": "round-robin", "targets": [{"target": "b"}]},
        action="frontend_model.update",
        kind="frontend_model",
        name=name,
        fields=frozenset({"name", "policy", "targets"}),
    )


async def delete_frontend(stage: Stage) -> Write:
    identity, name = await stage.frontend("a")
    return Write(
        path=f"/admin/frontend-models/{identity}",
        action="frontend_model.delete",
        kind="frontend_model",
        target_id=identity,
        name=name,
        fields=frozenset({"targets"}),
        again="refused",
    )


async def set_targets(stage: Stage) -> Write:
    identity, name = await stage.frontend("a")
    return Write(
        path=f"/admin/frontend-models/{identity}/targets",
        body={"targets": [{"target": "b", "weight": 3}]},
        action="frontend_model.update",
        kind="frontend_model",
        name=name,
        fields=frozenset({"targets"}),
    )


async def rebuild(stage: Stage) -> Write:
    return Write(path="/admin/snapshots/rebuild", action="snapshot.rebuild", kind="snapshot", again="another")


async def report_usage(stage: Stage) -> Write:
    return Write(path="/usage", raw=encode_batch(batch_of(make_event())), token=PROXY_TOKEN)


async def report_health(stage: Stage) -> Write:
    report = HealthReport(
        replica="r1",
        host="h1",
        version="0.1.0",
        started_at=0.0,
        snapshot_version=0,
        config_poll_seconds=5.0,
        health_report_interval_seconds=10.0,
    )
    return Write(path="/health-report", raw=msgspec.json.encode(report), token=PROXY_TOKEN)


WRITES: dict[str, Scenario] = {
    "POST /admin/providers": create_provider,
    "PATCH /admin/providers/{id}": change_provider,
    "DELETE /admin/providers/{id}": delete_provider,
    "POST /admin/providers/{id}/probe": probe_provider,
    "POST /admin/provider-models": create_model,
    "PATCH /admin/provider-models/{id}": change_model,
    "DELETE /admin/provider-models/{id}": delete_model,
    "POST /admin/provider-models/{id}/backends": add_backend,
    "PATCH /admin/backends/{id}": change_backend,
    "DELETE /admin/backends/{id}": delete_backend,
    "POST /admin/frontend-models": create_frontend,
    "PATCH /admin/frontend-models/{id}": change_frontend,
    "DELETE /admin/frontend-models/{id}": delete_frontend,
    "PUT /admin/frontend-models/{id}/targets": set_targets,
    "POST /admin/snapshots/rebuild": rebuild,
    "POST /usage": report_usage,
    "POST /health-report": report_health,
}
