"""`/admin/provider-catalogue`: known cloud providers and engines. The table exists; its seed and the routes
come with providers of the kind `cloud`."""

from __future__ import annotations

from fastllm_control.operations import Operation

ROUTES: tuple[Operation, ...] = ()
