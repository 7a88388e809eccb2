"""The proxied paths, as data."""

from __future__ import annotations

from typing import Final

from fastllm_proxy.exchange import Endpoint

ENDPOINTS: Final = (
    Endpoint(path="/chat/completions", label="/chat/completions", splices_usage=True, generates=True),
    Endpoint(path="/completions", label="/completions", splices_usage=True, generates=True),
    Endpoint(path="/responses", label="/responses", keeps_state=True, generates=True),
    Endpoint(path="/embeddings", label="/embeddings"),
    Endpoint(path="/rerank", label="/rerank"),
    Endpoint(path="/score", label="/score"),
    Endpoint(path="/moderations", label="/moderations"),
    Endpoint(path="/images/generations", label="/images/generations"),
    Endpoint(path="/audio/speech", label="/audio/speech"),
    Endpoint(path="/images/edits", label="/images/edits", takes_forms=True),
    Endpoint(path="/audio/transcriptions", label="/audio/transcriptions", takes_forms=True),
    Endpoint(path="/audio/translations", label="/audio/translations", takes_forms=True),
    Endpoint(path="/messages", label="/messages", dialect="anthropic", generates=True),
    Endpoint(path="/messages/count_tokens", label="/messages/count_tokens", dialect="anthropic"),
)


def spellings(path: str) -> tuple[str, ...]:
    """The request paths that mean `path`: with and without `/v1`, with and without a trailing slash."""
    return (path, path + "/", "/v1" + path, "/v1" + path + "/")
