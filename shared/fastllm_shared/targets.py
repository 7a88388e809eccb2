"""Targets resolved: the names that rules and frontend models point at, as lists of backends to choose among.
Pure.

A proxy resolves a snapshot over its live backends, the dry run over idle ones; everything after that is the
same code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, Literal, TypeVar
from typing import Protocol as Interface

import msgspec

from fastllm_shared.hashing import seed_of
from fastllm_shared.routing import Model, compiled
from fastllm_shared.snapshot import (
    DEFAULT_POLICY,
    BackendEntry,
    FrontendModelEntry,
    Policy,
    PoolEntry,
    ProviderEntry,
    ProviderModelEntry,
    Snapshot,
    TargetEntry,
)

Dialect = Literal["openai", "anthropic"]


class Live(Interface):
    """A backend as policies see it. Times are `time.monotonic()` seconds."""

    @property
    def id(self) -> str: ...
    @property
    def seed(self) -> int:
        """What hashing knows it by: `seed_of(id)`."""
        ...

    @property
    def entry(self) -> BackendEntry: ...
    @property
    def provider(self) -> ProviderEntry: ...
    @property
    def model(self) -> ProviderModelEntry: ...
    @property
    def inflight(self) -> int:
        """How many requests it has at the moment."""
        ...

    def is_in_rotation(self, now: float) -> bool:
        """Whether it is neither ejected nor cooling."""
        ...

    def recent_latency(self, now: float) -> float | None:
        """Seconds to its first byte, as a moving average; `None` when there is no recent sample."""
        ...


class Idle:
    """A backend that is up, has nothing to do and never had. Implements `Live`."""

    __slots__ = ("entry", "id", "inflight", "model", "provider", "seed")

    def __init__(self, entry: BackendEntry, provider: ProviderEntry, model: ProviderModelEntry) -> None:
        self.id = entry.id
        self.seed = seed_of(entry.id)
        self.entry = entry
        self.provider = provider
        self.model = model
        self.inflight = 0

    def is_in_rotation(self, now: float) -> bool:  # noqa: ARG002 - the interface
        return True

    def recent_latency(self, now: float) -> float | None:  # noqa: ARG002 - the interface
        return None


def idle_backends(snapshot: Snapshot) -> dict[str, Idle]:
    """Every backend of `snapshot` whose provider and model are in it, by id."""
    providers = {entry.id: entry for entry in snapshot.providers}
    models = {entry.id: entry for entry in snapshot.provider_models}
    return {
        entry.id: Idle(entry, providers[entry.provider_id], models[entry.provider_model_id])
        for entry in snapshot.backends
        if entry.provider_id in providers and entry.provider_model_id in models
    }


B = TypeVar("B", bound=Live)


class Member(msgspec.Struct, Generic[B], frozen=True):
    """A backend as one target uses it."""

    backend: B
    weight: int


class Target(msgspec.Struct, Generic[B], frozen=True):
    """A resolved target: its backends with their weights, and the policy among them (see
    `policy_among_backends`).

    Only backends that take new requests are members. `by_dialect` may hold none: the name is known, but
    nothing serves it now. `context_length` is the smallest that its members declare.
    """

    name: str
    weight: int
    policy: Policy
    context_length: int | None
    members: tuple[Member[B], ...]
    by_dialect: dict[Dialect, tuple[Member[B], ...]]
    seed: int


class Targets(msgspec.Struct, Generic[B], frozen=True):
    """A list of targets, of a rule or a frontend model's own; unresolved ones are left out.

    `policy` is the one among the targets. `name` says whose list it is, for turns to be counted by, and
    is no target's name, whose backends take turns as well.
    `context_length` is the smallest that any of them declares, `None` when none declares one.
    """

    name: str
    policy: Policy
    all: tuple[Target[B], ...]
    context_length: int | None = None


class FrontendModel(msgspec.Struct, Generic[B], frozen=True):
    """A frontend model with its targets resolved: its own and, by position, those of its rules.

    A rule that lists no target sends to the model's own, by its policy if it has one. `context_length` is
    the largest that its own targets declare.
    """

    entry: FrontendModelEntry
    name: str
    default: Targets[B]
    by_rule: dict[int, Targets[B]] = {}
    context_length: int | None = None


class Routes(msgspec.Struct, Generic[B], frozen=True):
    """All that routing looks things up in, by frontend name. `fallback` is the frontend model that may end
    every chain."""

    models: dict[str, FrontendModel[B]] = {}
    rules: dict[str, Model] = {}
    fallback: FrontendModel[B] | None = None


def resolve(snapshot: Snapshot, backends: Mapping[str, B]) -> Routes[B]:
    """Resolves every name of `snapshot`. One of its backends that is not in `backends`, by id, is left out of
    every target."""
    resolver = _Resolver(snapshot, backends)
    models = {entry.name: resolver.frontend(entry) for entry in snapshot.frontend_models}
    return Routes(
        models,
        compiled(snapshot.frontend_models),
        None if snapshot.fallback_model is None else models.get(snapshot.fallback_model),
    )


def policy_among_backends(own: Policy | None, listed: Policy | None) -> Policy:
    """A pool's own; for a provider model the list's when it is set and not `weighted`, else the
    deployment's."""
    if own is not None:
        return own
    return DEFAULT_POLICY if listed is None or listed == "weighted" else listed


class _Served(msgspec.Struct, Generic[B], frozen=True):
    """What a name stands for, whoever points at it. `policy` is a pool's own."""

    policy: Policy | None
    context_length: int | None
    members: tuple[Member[B], ...]
    by_dialect: dict[Dialect, tuple[Member[B], ...]]
    seed: int


class _Resolver(Generic[B]):
    def __init__(self, snapshot: Snapshot, backends: Mapping[str, B]) -> None:
        self._backends = backends
        self._served = {entry.name: self._provider_model(entry) for entry in snapshot.provider_models}
        self._served |= {entry.name: self._pool(entry) for entry in snapshot.pools}

    def frontend(self, entry: FrontendModelEntry) -> FrontendModel[B]:
        default = self._list(f"{entry.name}\0", entry.targets, entry.policy)
        declared = [t.context_length for t in default.all if t.context_length is not None]
        return FrontendModel(
            entry=entry,
            name=entry.name,
            default=default,
            by_rule={
                rule.position: self._list(
                    f"{entry.name}\0{rule.position}",
                    rule.targets or entry.targets,
                    rule.policy or entry.policy,
                )
                for rule in entry.rules
                if rule.action == "route"
            },
            context_length=max(declared, default=None),
        )

    def _list(self, name: str, entries: tuple[TargetEntry, ...], policy: Policy | None) -> Targets[B]:
        found = [(entry, served) for entry in entries if (served := self._served.get(entry.target))]
        return targets_of(name, policy, tuple(_target(entry, served, policy) for entry, served in found))

    def _pool(self, pool: PoolEntry) -> _Served[B]:
        members = [
            Member(backend, member.weight)
            for member in pool.members
            if (backend := self._usable(member.backend_id)) is not None and member.weight > 0
        ]
        declared = [n for m in members if (n := m.backend.model.context_length) is not None]
        return _served(pool.name, pool.policy, min(declared, default=None), members)

    def _provider_model(self, model: ProviderModelEntry) -> _Served[B]:
        members = [Member(backend, 1) for id_ in model.backends if (backend := self._usable(id_)) is not None]
        return _served(model.name, None, model.context_length, members)

    def _usable(self, backend_id: str) -> B | None:
        backend = self._backends.get(backend_id)
        return backend if backend is not None and backend.entry.state == "active" else None


def targets_of(name: str, policy: Policy | None, targets: tuple[Target[B], ...]) -> Targets[B]:
    """The list of these targets; among targets the default is `weighted`."""
    declared = [t.context_length for t in targets if t.context_length is not None]
    return Targets(name, policy or "weighted", targets, min(declared, default=None))


def _served(
    name: str, policy: Policy | None, context_length: int | None, members: list[Member[B]]
) -> _Served[B]:
    return _Served(
        policy=policy,
        context_length=context_length,
        members=tuple(members),
        by_dialect={
            "openai": tuple(m for m in members if m.backend.provider.protocol != "anthropic"),
            "anthropic": tuple(m for m in members if m.backend.provider.protocol != "openai"),
        },
        seed=seed_of(name),
    )


def _target(entry: TargetEntry, served: _Served[B], listed: Policy | None) -> Target[B]:
    return Target(
        name=entry.target,
        weight=entry.weight,
        policy=policy_among_backends(served.policy, listed),
        context_length=served.context_length,
        members=served.members,
        by_dialect=served.by_dialect,
        seed=served.seed,
    )
