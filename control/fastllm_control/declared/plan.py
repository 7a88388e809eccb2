"""From what is there to what a file says: which steps, in an order in which every reference exists. Pure.

Entries that both have are compared field by field. What only the file has is created; what only the database
has is deleted when `prune` says so and its section is in the file. The lists that an entry holds (backends,
members, targets, rules, permissions, roles) are the whole list.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct

from fastllm_control.declared.document import (
    BackendReference,
    DeclaredBackend,
    DeclaredLimits,
    DeclaredMember,
    DeclaredModel,
    DeclaredPool,
    DeclaredPrincipal,
    Document,
)
from fastllm_control.declared.export import Current

Action = Literal["create", "update", "delete"]
Kind = Literal[
    "provider",
    "provider_model",
    "backend",
    "pool",
    "frontend_model",
    "role",
    "principal",
    "fallback_model",
]
SECTION_OF: Mapping[Kind, str] = {
    "provider": "providers",
    "provider_model": "provider_models",
    "pool": "pools",
    "frontend_model": "frontend_models",
    "role": "roles",
    "principal": "principals",
}
_SIGNS: Mapping[Action, str] = {"create": "+", "update": "~", "delete": "-"}
SECRETS = ("upstream_api_key", "extra_headers")


class Step(Struct, frozen=True):
    """One object that changes. `fields` are those that an update changes; `backend` says which one, where it
    is a backend."""

    action: Action
    kind: Kind
    name: str
    fields: tuple[str, ...] = ()
    backend: BackendReference | None = None
    note: str | None = None

    def __str__(self) -> str:
        what = f"{_SIGNS[self.action]} {self.kind.replace('_', ' ')} {self.name}".rstrip()
        upstream = f" as {self.backend.upstream_model}" if self.backend is not None else ""
        fields = f": {', '.join(self.fields)}" if self.fields else ""
        return what + upstream + fields + (f" ({self.note})" if self.note else "")


class Plan(Struct, frozen=True):
    """What is to be done, or was. `warnings` are sentences for people; `version` is the snapshot that came of
    it: `None` when proxies see no difference, and in a dry run."""

    steps: tuple[Step, ...] = ()
    warnings: tuple[str, ...] = ()
    version: int | None = None

    def printed(self) -> str:
        """One line for each step and warning."""
        lines = [str(step) for step in self.steps] or ["= nothing to change"]
        return "\n".join([*lines, *(f"! {warning}" for warning in self.warnings)]) + "\n"


SecretChanges = Mapping[str, Sequence[str]]
"""Per provider which of `SECRETS` are to change: what a sealed value holds is not known here."""


def plan(current: Current, wanted: Document, secrets: SecretChanges, *, prune: bool) -> tuple[Step, ...]:
    """The steps, in the order in which they are done."""
    there = current.document
    changed: list[Step] = []
    changed += _providers(there, wanted, secrets)
    changed += _models(current, wanted)
    changed += _pools(current, wanted)
    changed += _entries("frontend_model", there.frontend_models, wanted.frontend_models)
    changed += _entries("role", there.roles, wanted.roles)
    changed += _entries("principal", there.principals, wanted.principals)
    if wanted.fallback_model is not UNSET and wanted.fallback_model != there.fallback_model:
        changed.append(Step("update", "fallback_model", wanted.fallback_model or "", note=_cleared(wanted)))
    deleted = list(_deletions(current, wanted)) if prune else []
    # A name that moves from a pool to a provider model, or back, must be free before it is taken.
    taken = {step.name for step in changed if step.action == "create" and step.kind in _ONE_SPACE}
    first = [step for step in deleted if step.kind in _ONE_SPACE and step.name in taken]
    return (*first, *changed, *(step for step in deleted if step not in first))


_ONE_SPACE = ("provider_model", "pool")


def by_name(entries: Sequence[Any] | None) -> dict[str, Any]:
    """A section's entries by name."""
    return {entry.name: entry for entry in entries or ()}


def same_backends(model: DeclaredModel) -> dict[tuple[str, str], DeclaredBackend]:
    """A model's backends by what tells them apart: provider and upstream name."""
    return {(backend.provider, backend.upstream_model): backend for backend in model.backends}


def all_members(wanted: DeclaredPool, current: Current) -> tuple[DeclaredMember, ...]:
    """A pool's members as they shall be: those of the file, and those leased ones that it does not name."""
    named = {member.backend for member in wanted.members if member.backend is not None}
    leased = current.leased_members.get(wanted.name, ())
    return (*wanted.members, *(member for member in leased if member.backend not in named))


def served_by_leased(current: Current) -> frozenset[str]:
    """The provider models that leased providers serve: they register them, so they are not pruned."""
    return frozenset(model for _, model, _ in current.leased_backends)


def differing(before: Struct, after: Struct) -> tuple[str, ...]:
    """The fields in which two of a kind differ."""
    names = before.__struct_fields__
    return tuple(name for name in names if getattr(before, name) != getattr(after, name))


def normal(entry: Any) -> Any:
    """An entry, so that what means the same is the same: the order of roles and permissions means nothing."""
    if isinstance(entry, DeclaredPrincipal):
        return msgspec.structs.replace(entry, roles=tuple(sorted(set(entry.roles))), limits=_limits(entry))
    permissions = getattr(entry, "permissions", None)
    if permissions is None:
        return entry
    ordered = sorted(set(permissions), key=lambda held: (held.verb, held.resource))
    return msgspec.structs.replace(entry, permissions=tuple(ordered))


def _limits(entry: DeclaredPrincipal) -> Any:
    return None if entry.limits == DeclaredLimits() else entry.limits


def _entries(kind: Kind, there: Sequence[Any] | None, wanted: Sequence[Any] | None) -> Iterator[Step]:
    before = by_name(there)
    for entry in wanted or ():
        if entry.name not in before:
            yield Step("create", kind, entry.name)
        elif fields := differing(normal(before[entry.name]), normal(entry)):
            yield Step("update", kind, entry.name, fields)


def _providers(there: Document, wanted: Document, secrets: SecretChanges) -> Iterator[Step]:
    before = by_name(there.providers)
    for entry in wanted.providers or ():
        if entry.name not in before:
            yield Step("create", "provider", entry.name)
            continue
        plain = differing(before[entry.name], _trimmed(entry))
        fields = (*(name for name in plain if name not in SECRETS), *secrets.get(entry.name, ()))
        if fields:
            yield Step("update", "provider", entry.name, fields)


def _trimmed(entry: Any) -> Any:
    # Addresses are stored without a slash at their end.
    return msgspec.structs.replace(entry, api_base=entry.api_base.rstrip("/"))


def _models(current: Current, wanted: Document) -> Iterator[Step]:
    before = by_name(current.document.provider_models)
    for entry in wanted.provider_models or ():
        if entry.name not in before:
            yield Step("create", "provider_model", entry.name)
            continue
        there: DeclaredModel = before[entry.name]
        fields = tuple(name for name in differing(there, entry) if name != "backends")
        if entry.context_length is None and entry.name in current.learned_lengths:
            fields = tuple(name for name in fields if name != "context_length")
        if fields:
            yield Step("update", "provider_model", entry.name, fields)
        yield from _backends(there, entry)


def _backends(there: DeclaredModel, wanted: DeclaredModel) -> Iterator[Step]:
    before, after = same_backends(there), same_backends(wanted)
    for key, entry in after.items():
        if key not in before:
            yield _backend("create", wanted.name, key)
        elif fields := differing(before[key], entry):
            yield _backend("update", wanted.name, key, fields)
    for key in before:
        if key not in after:
            yield _backend("delete", wanted.name, key)


def _backend(action: Action, model: str, key: tuple[str, str], fields: tuple[str, ...] = ()) -> Step:
    provider, upstream = key
    reference = BackendReference(provider=provider, provider_model=model, upstream_model=upstream)
    return Step(action, "backend", f"{provider}/{model}", fields, reference)


def _pools(current: Current, wanted: Document) -> Iterator[Step]:
    before = by_name(current.document.pools)
    for entry in wanted.pools or ():
        if entry.name not in before:
            yield Step("create", "pool", entry.name)
            continue
        there = before[entry.name]
        whole = all_members(there, current)
        after = msgspec.structs.replace(entry, members=all_members(entry, current))
        fields = differing(msgspec.structs.replace(there, members=whole), after)
        if (
            fields == ("members",)
            and _sorted(whole) == _sorted(after.members)
            and _names_leased(entry, current)
        ):
            continue  # only the places of leased members differ, which the file cannot know
        if fields:
            yield Step("update", "pool", entry.name, fields)


def _sorted(members: Sequence[DeclaredMember]) -> list[str]:
    return sorted(map(repr, members))


def _names_leased(entry: DeclaredPool, current: Current) -> bool:
    leased = [member.backend for member in current.leased_members.get(entry.name, ())]
    return any(member.backend in leased for member in entry.members)


def _deletions(current: Current, wanted: Document) -> Iterator[Step]:
    """In the reverse of the order in which things are made."""
    served = served_by_leased(current)
    kinds: tuple[Kind, ...] = ("principal", "role", "frontend_model", "pool", "provider_model", "provider")
    for kind in kinds:
        section = getattr(wanted, SECTION_OF[kind])
        if section is None:
            continue
        named = {entry.name for entry in section}
        for entry in getattr(current.document, SECTION_OF[kind]):
            if entry.name not in named and not (kind == "provider_model" and entry.name in served):
                yield Step("delete", kind, entry.name, note=_taken_along(kind, entry, current))


def _taken_along(kind: Kind, entry: Any, current: Current) -> str | None:
    if kind == "principal" and (keys := current.keys.get(entry.name, 0)):
        return f"with {_counted(keys, 'key')}"
    if kind == "provider_model" and entry.backends:
        return f"with {_counted(len(entry.backends), 'backend')}"
    if kind == "provider" and (served := _served_by(entry.name, current)):
        return f"with its backends of {', '.join(served)}"
    return None


def _served_by(provider: str, current: Current) -> list[str]:
    models = current.document.provider_models or ()
    return [model.name for model in models if any(one.provider == provider for one in model.backends)]


def _counted(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def _cleared(wanted: Document) -> str | None:
    return "cleared" if wanted.fallback_model is None else None
