"""`POST /admin/providers/register`: hosts that announce themselves, on a lease. The columns exist; the
route comes with the node agent and the sweep."""

from __future__ import annotations

from fastllm_control.operations import Operation

ROUTES: tuple[Operation, ...] = ()
