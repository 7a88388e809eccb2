"""All operations of the admin API, for the application, the OpenAPI document and the contract tests."""

from __future__ import annotations

from fastllm_control.api import fleet, health_report, meta, snapshot, usage
from fastllm_control.operations import Operation

OPERATIONS: tuple[Operation, ...] = (
    *meta.ROUTES,
    *snapshot.ROUTES,
    *usage.ROUTES,
    *fleet.ROUTES,
    *health_report.ROUTES,
)
