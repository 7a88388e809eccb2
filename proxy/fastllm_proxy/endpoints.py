"""The proxied paths, as data: `ENDPOINTS` are served, `LATER_ENDPOINTS` are named but not served yet."""

from __future__ import annotations

from typing import Final

from fastllm_proxy.exchange import Endpoint

ENDPOINTS: Final = (
    Endpoint(path="/chat/completions", label="/chat/completions", splices_usage=True),
    Endpoint(path="/completions", label="/completions", splices_usage=True),
    Endpoint(path="/embeddings", label="/embeddings"),
    Endpoint(path="/rerank", label="/rerank"),
    Endpoint(path="/score", label="/score"),
    Endpoint(path="/moderations", label="/moderations"),
    Endpoint(path="/images/generations", label="/images/generations"),
    Endpoint(path="/audio/speech", label="/audio/speech"),
    Endpoint(path="/messages", label="/messages", dialect="anthropic"),
    Endpoint(path="/messages/count_tokens", label="/messages/count_tokens", dialect="anthropic"),
)

LATER_ENDPOINTS: Final = (
    Endpoint(path="/responses", label="/responses"),  # needs the rule about state over several backends
    Endpoint(path="/audio/transcriptions", label="/audio/transcriptions"),  # these three are multipart forms
    Endpoint(path="/audio/translations", label="/audio/translations"),
    Endpoint(path="/images/edits", label="/images/edits"),
)


def spellings(path: str) -> tuple[str, ...]:
    """The request paths that mean `path`: with and without `/v1`, with and without a trailing slash."""
    return (path, path + "/", "/v1" + path, "/v1" + path + "/")
