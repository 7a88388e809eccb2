"""All operations of the admin API, for the application, the OpenAPI document and the contract tests."""

from __future__ import annotations

from fastllm_control.api import (
    audit,
    caps,
    fleet,
    health,
    health_report,
    keys,
    meta,
    principals,
    roles,
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
    *snapshot.ROUTES,
    *usage.ROUTES,
    *fleet.ROUTES,
    *health.ROUTES,
    *health_report.ROUTES,
)
