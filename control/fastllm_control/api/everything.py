"""All operations of the admin API, for the application, the OpenAPI document and the contract tests."""

from __future__ import annotations

from fastllm_control.api import (
    audit,
    caps,
    catalogue,
    declarative,
    dry_run,
    fleet,
    frontend_models,
    health,
    health_report,
    keys,
    meta,
    pools,
    principals,
    provider_models,
    providers,
    registration,
    roles,
    rules,
    sessions,
    snapshot,
    usage,
)
from fastllm_control.operations import Operation

OPERATIONS: tuple[Operation, ...] = (
    *meta.ROUTES,
    *sessions.ROUTES,
    *principals.ROUTES,
    *roles.ROUTES,
    *keys.ROUTES,
    *caps.ROUTES,
    *audit.ROUTES,
    *providers.ROUTES,
    *registration.ROUTES,
    *catalogue.ROUTES,
    *provider_models.ROUTES,
    *pools.ROUTES,
    *frontend_models.ROUTES,
    *rules.ROUTES,
    *declarative.ROUTES,
    *dry_run.ROUTES,
    *snapshot.ROUTES,
    *usage.ROUTES,
    *fleet.ROUTES,
    *health.ROUTES,
    *health_report.ROUTES,
)
