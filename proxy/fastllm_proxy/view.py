"""The view: a snapshot turned into the indexes that one request is served from. Immutable once built.

`build_view` is pure but for the backends, which it takes from the registry so that their live state
survives a swap while their identity is unchanged.
"""

from __future__ import annotations

import msgspec

from fastllm_proxy.backends import Backend
from fastllm_shared.snapshot import FrontendModelEntry, KeyEntry, Policy, PrincipalEntry


class Caller(msgspec.Struct, frozen=True):
    """One API key with its principal. `models` holds the frontend models granted by name."""

    key: KeyEntry
    principal: PrincipalEntry
    models: frozenset[str]

    def may_name(self, model: str) -> bool:
        return self.principal.all_models or model in self.models


class Target(msgspec.Struct, frozen=True):
    """A resolved target: its backends with their weights, its own policy if it is a pool.

    `backends` may be empty: the name is known, but nothing serves it now.
    """

    name: str
    weight: int
    policy: Policy | None
    context_length: int | None
    backends: tuple[Backend, ...]
    backend_weights: tuple[int, ...]


class FrontendModel(msgspec.Struct, frozen=True):
    """A frontend model with its default targets resolved; unresolved ones are left out.

    `context_length` is the largest that its targets declare.
    """

    entry: FrontendModelEntry
    name: str
    policy: Policy | None
    targets: tuple[Target, ...]
    context_length: int | None


class View(msgspec.Struct, frozen=True):
    """All of it. `callers` is keyed by key digest, `models` by frontend name, `backends` by id."""

    version: int
    history: str
    built_unix: float
    callers: dict[bytes, Caller]
    models: dict[str, FrontendModel]
    backends: dict[str, Backend]
