"""All operations of the admin API, for the application, the OpenAPI document and the contract tests."""

from __future__ import annotations

from fastllm_control.api import meta, snapshot
from fastllm_control.operations import Operation

OPERATIONS: tuple[Operation, ...] = (*meta.ROUTES, *snapshot.ROUTES)
