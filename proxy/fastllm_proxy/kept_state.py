"""Requests that refer to what a backend keeps: only one has it, and nothing in the request says which.

They pass when the chain has a single backend: then it is that one. Who wants them with several keeps the
conversation itself and sends it whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fastllm_proxy.errors import Refused

if TYPE_CHECKING:
    from fastllm_proxy.exchange import Exchange

_STATEFUL: Final = ("previous_response_id", "conversation", "background")
_HARMLESS: Final = frozenset((b"null", b"false"))


def refuse_kept_state(exchange: Exchange) -> None:
    """Raises `Refused` 400 when the request needs state and more than one backend of its chain, the fallback
    included, could have it. A chain without any backend is not refused here: that is no fault of the
    request's."""
    seen, chain = exchange.peek, exchange.chain
    assert seen is not None
    assert chain is not None
    asked = [
        name for name in _STATEFUL if name in seen.members and bytes(seen.members[name]) not in _HARMLESS
    ]
    if not asked:
        return
    dialect = exchange.endpoint.dialect
    if len({member.backend.id for target in chain for member in target.by_dialect[dialect]}) > 1:
        name = asked[0]
        message = (
            f"{name} needs the backend that holds the state, and {seen.model} has several: send all input"
        )
        raise Refused(400, "unsupported_parameter", message, param=name)
