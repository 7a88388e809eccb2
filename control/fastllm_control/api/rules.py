"""Rules: `/admin/frontend-models/{id}/rules`, `/admin/rules/{id}`, `/admin/fallback-model` and
`POST /admin/routing/dry-run`. Their tables and their place in the snapshot exist; the routes come with the
engine that evaluates them."""

from __future__ import annotations

from fastllm_control.operations import Operation

ROUTES: tuple[Operation, ...] = ()
