"""The client's body as one backend is to see it: the same bytes, but for the model's name and the wish for a
usage event, spliced in place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastllm_proxy.peek import Edit, ask_for_usage, rename, splice

if TYPE_CHECKING:
    from fastllm_proxy.backends import Backend
    from fastllm_proxy.exchange import Exchange


def body_for(exchange: Exchange, backend: Backend) -> list[bytes | bytearray | memoryview]:
    """The pieces that one attempt sends. Fills `injected_usage`."""
    seen, body = exchange.peek, exchange.body
    assert seen is not None
    edits: list[Edit] = []
    if seen.model != backend.entry.upstream_model:
        edits.append(rename(seen, backend.entry.upstream_model))
    exchange.injected_usage = False
    if seen.stream and exchange.endpoint.splices_usage and backend.provider.stream_usage != "never":
        edit = ask_for_usage(seen, body)
        if edit is not None:
            edits.append(edit)
            exchange.injected_usage = True
    return splice(body, edits)
