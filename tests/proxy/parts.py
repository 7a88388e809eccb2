"""Parts of the request path without sockets: live backends, targets, exchanges."""

from __future__ import annotations

from typing import Any, cast

from fastllm_proxy.backends import Backend
from fastllm_proxy.client_headers import ClientHeaders
from fastllm_proxy.endpoints import ENDPOINTS
from fastllm_proxy.exchange import Exchange
from fastllm_proxy.peek import peek
from fastllm_proxy.view import Caller, FrontendModel, Member, Target, View
from fastllm_shared.hashing import seed_of
from fastllm_shared.snapshot import (
    DEFAULT_POLICY,
    FrontendModelEntry,
    KeyEntry,
    Policy,
    PrincipalEntry,
    ProviderModelEntry,
)
from fastllm_shared.targets import Dialect, targets_of
from tests.proxy.rig import backend, chat, provider

CALLER = Caller(
    KeyEntry(b"0" * 32, "key-1", "principal-1", "sk-test"),
    PrincipalEntry("principal-1", "team-a", "service_account"),
    frozenset({"assistant"}),
)


def live_backend(number: int, *, state: str = "active", **changes: Any) -> Backend:
    """A backend that nobody is going to connect to."""
    return Backend(
        backend(number, state=state),
        provider(number, "http://127.0.0.1:1/v1", **changes),
        ProviderModelEntry("model-1", "qwen"),
        cast(Any, None),
        "/v1",
        b"host: 127.0.0.1:1\r\n",
    )


def target(
    name: str,
    *backends: Backend,
    weight: int = 1,
    policy: Policy = DEFAULT_POLICY,
    context_length: int | None = None,
    weights: tuple[int, ...] = (),
) -> Target:
    members = tuple(Member(one, weights[at] if weights else 1) for at, one in enumerate(backends))
    by_dialect: dict[Dialect, tuple[Member, ...]] = {"openai": members, "anthropic": members}
    return Target(name, weight, policy, context_length, members, by_dialect, seed_of(name))


def frontend(*targets: Target, **changes: Any) -> FrontendModel:
    entry = FrontendModelEntry("frontend-1", "assistant", created_at=0.0, **changes)
    return FrontendModel(entry, entry.name, targets_of(entry.name, entry.policy, targets))


def view(**changes: Any) -> View:
    return View(
        **{
            "version": 1,
            "history": "h",
            "callers": {},
            "models": {},
            "backends": {},
            **changes,
        }
    )


def exchange(
    *targets: Target,
    body: bytes | None = None,
    path: str = "/chat/completions",
    headers: tuple[tuple[bytes, bytes], ...] = (),
    query: str = "",
    **changes: Any,
) -> Exchange:
    """An exchange as it is after authorisation; its chain is `targets`."""
    made = Exchange(
        view=changes.pop("view", None) or view(),
        endpoint=next(endpoint for endpoint in ENDPOINTS if endpoint.path == path),
        headers=ClientHeaders(headers),
        query=query,
        request_id="request-1",
        downstream=cast(Any, None),
        accepted_at=0.0,
        accepted_unix=0.0,
    )
    made.caller = CALLER
    made.body = chat() if body is None else body
    made.peek = peek(made.body)
    made.frontend = frontend(*targets, **changes)
    made.chain = targets
    return made
