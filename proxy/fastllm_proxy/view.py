"""The view: a snapshot turned into the indexes that one request is served from. Immutable once built.

`build_view` is pure: the live backends are handed in, so that their state survives a swap while their
identity is unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from fastllm_proxy.backends import Backend
from fastllm_proxy.exchange import Dialect
from fastllm_shared.routing import Model, compiled
from fastllm_shared.snapshot import (
    FrontendModelEntry,
    KeyEntry,
    Policy,
    PoolEntry,
    PrincipalEntry,
    ProviderModelEntry,
    Snapshot,
    TargetEntry,
)


class Caller(msgspec.Struct, frozen=True):
    """One API key with its principal. `models` holds the frontend models granted by name."""

    key: KeyEntry
    principal: PrincipalEntry
    models: frozenset[str]

    def may_name(self, model: str) -> bool:
        return self.principal.all_models or model in self.models


class Member(msgspec.Struct, frozen=True):
    """A backend as one target uses it."""

    backend: Backend
    weight: int


class Target(msgspec.Struct, frozen=True):
    """A resolved target: its backends with their weights, its own policy if it is a pool.

    Only backends that take new requests are members. `by_dialect` may hold none: the name is known, but
    nothing serves it now. `context_length` is the smallest that its members declare.
    """

    name: str
    weight: int
    policy: Policy | None
    context_length: int | None
    members: tuple[Member, ...]
    by_dialect: dict[Dialect, tuple[Member, ...]]


class FrontendModel(msgspec.Struct, frozen=True):
    """A frontend model with its targets resolved; unresolved ones are left out.

    `rule_targets` are those of its rules, by position. `context_length` is the largest that its default
    targets declare.
    """

    entry: FrontendModelEntry
    name: str
    policy: Policy | None
    targets: tuple[Target, ...]
    context_length: int | None
    rule_targets: dict[int, tuple[Target, ...]] = {}


class View(msgspec.Struct, frozen=True):
    """All of it. `callers` is keyed by key digest, `models` by frontend name, `backends` by id.

    `rules` are what the routing engine asks, by frontend name; `fallback` is the frontend model that may end
    every chain.
    """

    version: int
    history: str
    callers: dict[bytes, Caller]
    models: dict[str, FrontendModel]
    backends: dict[str, Backend]
    rules: dict[str, Model] = {}
    fallback: FrontendModel | None = None


def build_view(snapshot: Snapshot, backends: Mapping[str, Backend]) -> View:
    """Indexes `snapshot`. `backends` are the live ones by id; one that is missing is left out of every
    target."""
    resolver = _Resolver(snapshot, backends)
    models = {entry.name: resolver.frontend(entry) for entry in snapshot.frontend_models}
    return View(
        version=snapshot.version,
        history=snapshot.history,
        callers=_callers(snapshot),
        models=models,
        backends=dict(backends),
        rules=compiled(snapshot.frontend_models),
        fallback=None if snapshot.fallback_model is None else models.get(snapshot.fallback_model),
    )


def _callers(snapshot: Snapshot) -> dict[bytes, Caller]:
    granted = {entry.id: (entry, frozenset(entry.models)) for entry in snapshot.principals}
    callers = {}
    for key in snapshot.keys:
        held = granted.get(key.principal_id)
        if held is not None:
            callers[key.digest] = Caller(key, *held)
    return callers


class _Resolver:
    """Names of targets → live backends."""

    def __init__(self, snapshot: Snapshot, backends: Mapping[str, Backend]) -> None:
        self._backends = backends
        self._models = {entry.name: entry for entry in snapshot.provider_models}
        self._pools = {entry.name: entry for entry in snapshot.pools}

    def frontend(self, entry: FrontendModelEntry) -> FrontendModel:
        targets = self._targets(entry.targets)
        declared = [target.context_length for target in targets if target.context_length is not None]
        return FrontendModel(
            entry=entry,
            name=entry.name,
            policy=entry.policy,
            targets=targets,
            context_length=max(declared, default=None),
            rule_targets={rule.position: self._targets(rule.targets) for rule in entry.rules},
        )

    def _targets(self, entries: tuple[TargetEntry, ...]) -> tuple[Target, ...]:
        return tuple(found for entry in entries if (found := self._target(entry)) is not None)

    def _target(self, entry: TargetEntry) -> Target | None:
        pool = self._pools.get(entry.target)
        if pool is not None:
            return self._pool(entry, pool)
        model = self._models.get(entry.target)
        return None if model is None else self._provider_model(entry, model)

    def _pool(self, entry: TargetEntry, pool: PoolEntry) -> Target:
        members = [
            Member(backend, member.weight)
            for member in pool.members
            if (backend := self._usable(member.backend_id)) is not None and member.weight > 0
        ]
        declared = [n for m in members if (n := m.backend.model.context_length) is not None]
        return _target(entry, pool.policy, min(declared, default=None), members)

    def _provider_model(self, entry: TargetEntry, model: ProviderModelEntry) -> Target:
        members = [Member(backend, 1) for id_ in model.backends if (backend := self._usable(id_)) is not None]
        return _target(entry, None, model.context_length, members)

    def _usable(self, backend_id: str) -> Backend | None:
        backend = self._backends.get(backend_id)
        return backend if backend is not None and backend.entry.state == "active" else None


def _target(
    entry: TargetEntry, policy: Policy | None, context_length: int | None, members: list[Member]
) -> Target:
    return Target(
        name=entry.target,
        weight=entry.weight,
        policy=policy,
        context_length=context_length,
        members=tuple(members),
        by_dialect={
            "openai": tuple(m for m in members if m.backend.provider.protocol != "anthropic"),
            "anthropic": tuple(m for m in members if m.backend.provider.protocol != "openai"),
        },
    )
