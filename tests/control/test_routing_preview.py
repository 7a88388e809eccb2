"""Candidates that are not used, and why; the rest is the engine's, and has its tests there."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec
import pytest

from fastllm_control.provider_secrets import seal_credential
from fastllm_control.routing_preview import Considered, Preview, preview
from fastllm_control.secrets import Keyring
from fastllm_control.snapshot import build
from fastllm_control.snapshot_rows import FrontendModelRow, PoolMemberRow, PoolRow, PrincipalRow, TargetRow
from fastllm_shared.conditions import Facts
from fastllm_shared.given import Given
from fastllm_shared.ids import uuid7
from fastllm_shared.targets import Dialect
from tests.fakes.rows import backend, model, provider, rows

RING = Keyring.parse("ab" * 32)
OTHER = Keyring.parse("cd" * 32)
REQUEST = Considered(
    principal="team",
    roles=[],
    endpoint="/chat/completions",
    dialect="openai",
    stream=False,
    prompt_tokens=None,
    max_tokens=None,
    at=datetime.datetime(2026, 7, 1, tzinfo=datetime.UTC),
    budget_used_percent=None,
    inflight_per_backend=None,
    conversation_known=False,
)


def seen(*targets: str, dialect: Dialect = "openai", tokens: int = 0, **content: Any) -> Preview:
    """What is told of a request for the frontend model `assistant` with these default targets."""
    frontend = FrontendModelRow(uuid7(), "assistant", None, False, 0.0)
    caller = PrincipalRow(uuid7(), "team", "service_account", None, None)
    given = rows(
        frontend_models=[frontend],
        principals=[caller],
        default_targets=[TargetRow(frontend.id, name, 1) for name in targets],
        **content,
    )
    made = build(given, RING.open)
    facts = Facts("team", (), stream=False, now_unix=0.0)
    asked = Given(7, prompt_tokens=tokens, dialect=dialect)
    return preview(given, made, "assistant", made.snapshot.principals[0], REQUEST, facts=facts, asked=asked)


@pytest.mark.parametrize(
    ("of_provider", "of_backend", "skipped"),
    [
        ({}, {}, None),
        ({}, {"condition": "degraded"}, None),  # of a typed-in provider a finding only tells a person
        ({}, {"condition": "pending"}, "pending"),
        ({}, {"state": "draining"}, "draining"),
        ({"state": "draining"}, {"state": "disabled"}, "disabled"),
        ({"agent_draining": True}, {}, "draining"),
        ({"kind": "dynamic"}, {"condition": "drifted"}, "drifted"),
        ({"kind": "dynamic"}, {"condition": "degraded"}, "degraded"),
        ({"kind": "dynamic", "condition": "degraded"}, {}, "degraded"),
        ({"protocol": "anthropic"}, {}, "dialect"),
    ],
)
def test_why_a_backend_is_skipped(
    of_provider: dict[str, Any], of_backend: dict[str, Any], skipped: str | None
) -> None:
    gpu, qwen = provider(**of_provider), model()
    one = backend(gpu, qwen, **of_backend)
    (link,) = seen("qwen", providers=[gpu], models=[qwen], backends=[one]).chain
    assert [candidate.skipped for candidate in link.backends] == [skipped]
    assert link.skipped == (None if skipped is None else "no_usable_backend")
    assert (link.backends[0].provider, link.backends[0].upstream_model) == (gpu.name, one.upstream_model)


def test_a_credential_that_does_not_open() -> None:
    gpu, qwen = provider(), model()
    gpu = msgspec.structs.replace(gpu, credential=seal_credential(OTHER, gpu.id, "sk-secret"))
    (link,) = seen("qwen", providers=[gpu], models=[qwen], backends=[backend(gpu, qwen)]).chain
    assert [candidate.skipped for candidate in link.backends] == ["credential_unreadable"]


def test_what_stands_for_a_pool() -> None:
    gpu, claude = provider(), provider(name="cloud", protocol="anthropic")
    qwen, other = model(), model("other")
    served = [backend(gpu, qwen), backend(claude, qwen), backend(gpu, other)]
    pool = PoolRow(uuid7(), "local", "least-loaded")
    members = [
        PoolMemberRow(pool.id, qwen.name, None, 1),
        PoolMemberRow(pool.id, None, served[2].id, 2),
    ]
    content: dict[str, Any] = {
        "models": [qwen, other],
        "backends": served,
        "pools": [pool],
        "pool_members": members,
    }
    (link,) = seen("local", providers=[gpu, claude], **content).chain
    assert (link.kind, link.policy) == ("pool", "least-loaded")
    assert [one.skipped for one in link.backends] == [None, None, "dialect"]
    (link,) = seen("local", providers=[gpu, claude], dialect="anthropic", **content).chain
    assert [one.skipped for one in link.backends] == [None, "dialect", "dialect"]


def test_names_that_lead_nowhere_stand_behind() -> None:
    gpu, qwen, bare = provider(), model(), model("bare")
    told = seen(
        "nowhere", "bare", "qwen", providers=[gpu], models=[qwen, bare], backends=[backend(gpu, qwen)]
    )
    assert [(link.target, link.skipped) for link in told.chain] == [
        ("qwen", None),
        ("bare", "no_backends"),
        ("nowhere", "unresolved"),
    ]
    assert told.chain[2].kind is None


def test_a_context_that_is_too_small() -> None:
    gpu, qwen = provider(), model()
    content: dict[str, Any] = {"providers": [gpu], "models": [qwen], "backends": [backend(gpu, qwen)]}
    for tokens, fits in ((32768, True), (32769, False)):
        (link,) = seen("qwen", tokens=tokens, **content).chain
        assert (link.fits, link.context_length, link.skipped) == (fits, 32768, None)
