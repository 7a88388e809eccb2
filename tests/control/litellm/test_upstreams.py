"""What provider prefixes stand for."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from fastllm_control.litellm.upstreams import UPSTREAMS, Unfit, Upstream, address, split, upstream


@pytest.mark.parametrize(
    ("model", "provider", "found"),
    [
        ("openai/gpt-4o", None, ("openai", "gpt-4o")),
        ("gpt-4o", None, ("openai", "gpt-4o")),
        ("o3-mini", None, ("openai", "o3-mini")),
        ("claude-3-5-haiku", None, ("anthropic", "claude-3-5-haiku")),
        ("openrouter/meta-llama/llama-3", None, ("openrouter", "meta-llama/llama-3")),
        ("meta-llama/llama-3", None, ("", "meta-llama/llama-3")),
        ("meta-llama/llama-3", "openai", ("openai", "meta-llama/llama-3")),
        ("openai/x", "openai", ("openai", "x")),
    ],
)
def test_prefix_and_name(model: str, provider: str | None, found: tuple[str, str]) -> None:
    assert split(model, provider) == found


@pytest.mark.parametrize(
    ("prefix", "base", "made"),
    [
        ("openai", None, "https://api.openai.com/v1"),
        ("openai", "http://vllm:8000/v1/", "http://vllm:8000/v1"),
        ("hosted_vllm", "http://vllm:8000/v1/chat/completions", "http://vllm:8000/v1"),
        ("vllm", "http://vllm:8000/v1", "http://vllm:8000/v1"),
        ("ollama", "http://box:11434", "http://box:11434/v1"),
        ("azure", "https://x.openai.azure.com/", "https://x.openai.azure.com/openai/v1"),
        ("azure", "https://x.openai.azure.com/openai/deployments/d", "https://x.openai.azure.com/openai/v1"),
        ("azure", "https://x.openai.azure.com/openai/v1", "https://x.openai.azure.com/openai/v1"),
        ("anthropic", "https://relay/v1/messages", "https://relay/v1"),
        ("anthropic", "https://relay", "https://relay/v1"),
    ],
)
def test_addresses(prefix: str, base: str | None, made: str) -> None:
    found = upstream(prefix, base)
    assert isinstance(found, Upstream)
    assert address(found, base) == made


@pytest.mark.parametrize(
    "prefix", ["bedrock", "vertex_ai", "watsonx", "replicate", "vllm", "hosted_vllm", "x", ""]
)
def test_what_cannot_be_served_says_why(prefix: str) -> None:
    found = upstream(prefix, None)
    assert isinstance(found, Unfit)
    assert len(found.reason) > 20


def test_every_known_address_is_one_that_a_path_can_be_put_behind() -> None:
    known = [found.base for found in UPSTREAMS.values() if isinstance(found, Upstream) and found.base]
    assert len(known) > 20
    for base in known:
        parts = urlsplit(base)
        assert parts.scheme == "https" or parts.hostname == "localhost"
        assert (parts.query, parts.fragment, base.rstrip("/")) == ("", "", base)
