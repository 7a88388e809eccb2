"""`/admin/pools`: balancing policies over existing backends. Their tables and their place in the snapshot
exist; the routes come with the policies that a pool chooses from."""

from __future__ import annotations

from fastllm_control.operations import Operation

ROUTES: tuple[Operation, ...] = ()
