"""Flow control per backend. Empty so far: every gate is open.

`admission_max_concurrent` will bound what this replica sends to a backend; a full gate sends the request to
an untried sibling first and queues only when there is none, round-robin between principals.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastllm_proxy.backends import Backend
    from fastllm_proxy.exchange import Exchange


class Gates:
    __slots__ = ()

    def has_room(self, backend: Backend) -> bool:  # noqa: ARG002 - the interface of what comes
        """Whether a request would pass at once."""
        return True

    def try_enter(self, backend: Backend) -> bool:  # noqa: ARG002 - the interface of what comes
        """Takes a place if there is one now."""
        return True

    async def enter(self, backend: Backend, exchange: Exchange) -> None:
        """Waits for a place. Will raise `Refused` 503 `backend_overloaded`."""

    def leave(self, backend: Backend) -> None:
        """Gives the place back; called once for every `enter` that returned and `try_enter` that took one."""
