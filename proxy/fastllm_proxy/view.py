"""The view: a snapshot turned into the indexes that one request is served from. Immutable once built.

`build_view` is pure: the live backends are handed in, so that their state survives a swap while their
identity is unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from fastllm_proxy.backends import Backend
from fastllm_shared import targets
from fastllm_shared.snapshot import KeyEntry, PrincipalEntry, Snapshot


class Caller(msgspec.Struct, frozen=True):
    """One API key with its principal. `models` holds the frontend models granted by name."""

    key: KeyEntry
    principal: PrincipalEntry
    models: frozenset[str]

    def may_name(self, model: str) -> bool:
        return self.principal.all_models or model in self.models


Member: TypeAlias = targets.Member[Backend]
Target: TypeAlias = targets.Target[Backend]
FrontendModel: TypeAlias = targets.FrontendModel[Backend]
Routes: TypeAlias = targets.Routes[Backend]


class View(msgspec.Struct, frozen=True):
    """All of it. `callers` is keyed by key digest, `models` by frontend name, `backends` by id; `routes` is
    what routing looks things up in, these models included."""

    version: int
    history: str
    callers: dict[bytes, Caller]
    models: dict[str, FrontendModel]
    backends: dict[str, Backend]
    routes: Routes = targets.Routes()


def build_view(snapshot: Snapshot, backends: Mapping[str, Backend]) -> View:
    """Indexes `snapshot`. `backends` are the live ones by id; one that is missing is left out of every
    target."""
    routes = targets.resolve(snapshot, backends)
    return View(
        version=snapshot.version,
        history=snapshot.history,
        callers=_callers(snapshot),
        models=routes.models,
        backends=dict(backends),
        routes=routes,
    )


def _callers(snapshot: Snapshot) -> dict[bytes, Caller]:
    granted = {entry.id: (entry, frozenset(entry.models)) for entry in snapshot.principals}
    callers = {}
    for key in snapshot.keys:
        held = granted.get(key.principal_id)
        if held is not None:
            callers[key.digest] = Caller(key, *held)
    return callers
