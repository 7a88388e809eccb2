from __future__ import annotations

from fastllm_proxy.endpoints import ENDPOINTS, spellings

CONTRACT = {
    "/chat/completions",
    "/completions",
    "/responses",
    "/embeddings",
    "/rerank",
    "/score",
    "/audio/transcriptions",
    "/audio/translations",
    "/audio/speech",
    "/images/generations",
    "/images/edits",
    "/moderations",
    "/messages",
    "/messages/count_tokens",
}


def test_every_endpoint_of_the_contract_is_named_once() -> None:
    paths = [endpoint.path for endpoint in ENDPOINTS]
    assert len(paths) == len(set(paths))
    assert set(paths) == CONTRACT


def test_what_is_anthropics_and_what_may_be_asked_for_usage() -> None:
    served = {endpoint.path: endpoint for endpoint in ENDPOINTS}
    assert {p for p, e in served.items() if e.dialect == "anthropic"} == {
        "/messages",
        "/messages/count_tokens",
    }
    assert {p for p, e in served.items() if e.splices_usage} == {"/chat/completions", "/completions"}


def test_spellings() -> None:
    assert spellings("/a") == ("/a", "/a/", "/v1/a", "/v1/a/")
