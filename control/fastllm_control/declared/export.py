"""The database → document, and what an apply must know of the database besides.

Nothing secret is read: a credential becomes a reference to an environment variable whose name is derived.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar
from uuid import UUID

import msgspec
from msgspec import Struct
from sqlalchemy.ext.asyncio import AsyncSession

from fastllm_control.access import Permission
from fastllm_control.declared.document import (
    BackendReference,
    DeclaredBackend,
    DeclaredBudget,
    DeclaredFrontend,
    DeclaredLimits,
    DeclaredMember,
    DeclaredModel,
    DeclaredPool,
    DeclaredPrincipal,
    DeclaredProvider,
    DeclaredRole,
    Document,
    SecretReference,
)
from fastllm_control.errors import Conflict
from fastllm_control.forms import RuleForm
from fastllm_control.provider_secrets import open_headers
from fastllm_control.repositories import content, declared
from fastllm_control.repositories.declared import Stored
from fastllm_control.secrets import Keyring, Undecryptable
from fastllm_control.tables.configuration import Provider

S = TypeVar("S", bound=Struct)
_DERIVED = frozenset({"upstream_api_key", "extra_headers"})

BackendKey = tuple[str, str, str]
"""Provider, provider model, upstream name."""


class Current(Struct, frozen=True):
    """What is there. `document` leaves out what registers itself: leased providers, the backends on them, and
    the members of pools that are such backends; those are beside it."""

    document: Document
    sealed: Mapping[str, Provider]
    """The row of each provider in the document; its secrets are sealed."""
    leased: frozenset[str]
    leased_backends: frozenset[BackendKey]
    leased_members: Mapping[str, Sequence[DeclaredMember]]
    backend_ids: Mapping[BackendKey, UUID]
    learned_lengths: frozenset[str]
    """Provider models whose context length an engine said and nobody set."""
    built_in: frozenset[str]
    """Roles."""
    keys: Mapping[str, int]
    """How many keys a principal has that are not revoked."""


HeaderNames = Callable[[Provider], Sequence[str]]


async def export(session: AsyncSession, ring: Keyring | None) -> Document:
    """The whole configuration as a file would say it. Raises `Conflict` for a provider whose extra headers
    cannot be read: their names are sealed like their values."""

    def names(row: Provider) -> Sequence[str]:
        if row.extra_headers is None:
            return ()
        if ring is None:
            message = f"the provider {row.name!r} has extra headers, whose names are encrypted"
            raise Conflict("unreadable", f"{message}: set FASTLLM_ENCRYPTION_KEY")
        try:
            return list(open_headers(ring.open, row.id, row.extra_headers))
        except Undecryptable as error:
            message = f"the extra headers of the provider {row.name!r} cannot be read: {error}"
            raise Conflict("unreadable", message) from None

    return (await current(session, names)).document


async def current(session: AsyncSession, header_names: HeaderNames = lambda _: ()) -> Current:
    """What is there. Without `header_names` the document has no extra headers."""
    stored = await declared.read(session)
    typed = [row for row in stored.providers if row.kind != "dynamic"]
    provider_names = {row.id: row.name for row in stored.providers}
    model_names = {row.id: row.name for row in stored.models}
    leased = frozenset(row.name for row in stored.providers if row.kind == "dynamic")
    keys: dict[UUID, BackendKey] = {
        row.id: (provider_names[row.provider_id], model_names[row.provider_model_id], row.upstream_model)
        for row in stored.backends
    }
    members = {row.name: _members(stored, row.id, keys) for row in stored.pools}
    document = Document(
        format=1,
        providers=_providers(typed, header_names),
        provider_models=_models(stored, keys, leased),
        pools=tuple(
            _of(DeclaredPool, row, members=tuple(m for m in members[row.name] if not is_leased(m, leased)))
            for row in stored.pools
        ),
        frontend_models=tuple(_frontend(stored, row) for row in stored.frontends),
        fallback_model=await content.fallback(session),
        roles=tuple(
            DeclaredRole(name=row.name, permissions=_sorted(stored.permissions.get(row.id, ())))
            for row in stored.roles
            if not row.built_in
        ),
        principals=tuple(_principal(stored, row) for row in stored.principals),
    )
    return Current(
        document=document,
        sealed={row.name: row for row in typed},
        leased=leased,
        leased_backends=frozenset(key for key in keys.values() if key[0] in leased),
        leased_members={
            name: [member for member in found if is_leased(member, leased)] for name, found in members.items()
        },
        backend_ids={key: backend_id for backend_id, key in keys.items()},
        learned_lengths=frozenset(row.name for row in stored.models if not row.context_length_set),
        built_in=frozenset(row.name for row in stored.roles if row.built_in),
        keys={row.name: stored.keys.get(row.id, 0) for row in stored.principals},
    )


def is_leased(member: DeclaredMember, leased: frozenset[str]) -> bool:
    """Whether a pool's member is one backend of a leased provider."""
    return member.backend is not None and member.backend.provider in leased


def _of(kind: type[S], row: Any, **others: Any) -> S:
    """`kind` out of the row's columns of the same names, and `others`."""
    names = [name for name in kind.__struct_fields__ if name not in others]
    return msgspec.convert({name: getattr(row, name) for name in names} | others, kind)


def _providers(rows: Sequence[Provider], header_names: HeaderNames) -> tuple[DeclaredProvider, ...]:
    taken: set[str] = set()
    found = []
    for row in rows:
        key = None
        if row.credential is not None:
            key = SecretReference(env=_variable(["FASTLLM_CREDENTIAL", row.name], taken))
        headers = {
            name: SecretReference(env=_variable(["FASTLLM_HEADER", row.name, name], taken))
            for name in header_names(row)
        }
        found.append(_of(DeclaredProvider, row, upstream_api_key=key, extra_headers=headers))
    return tuple(found)


def _variable(parts: Sequence[str], taken: set[str]) -> str:
    """A variable's name that no other reference of the document has."""
    plain = re.sub(r"[^A-Z0-9]+", "_", "_".join(parts).upper())[:150].strip("_")
    name, number = plain, 1
    while name in taken:
        number += 1
        name = f"{plain}_{number}"
    taken.add(name)
    return name


def _models(
    stored: Stored, keys: Mapping[UUID, BackendKey], leased: frozenset[str]
) -> tuple[DeclaredModel, ...]:
    backends: dict[str, list[DeclaredBackend]] = {row.name: [] for row in stored.models}
    for row in sorted(stored.backends, key=lambda row: keys[row.id]):
        provider, model, _ = keys[row.id]
        if provider not in leased:
            backends[model].append(_of(DeclaredBackend, row, provider=provider))
    return tuple(_of(DeclaredModel, row, backends=tuple(backends[row.name])) for row in stored.models)


def _members(stored: Stored, pool_id: UUID, keys: Mapping[UUID, BackendKey]) -> Sequence[DeclaredMember]:
    found = []
    for row in stored.members.get(pool_id, ()):
        if row.backend_id is not None:
            provider, model, upstream = keys[row.backend_id]
            reference = BackendReference(provider=provider, provider_model=model, upstream_model=upstream)
            found.append(DeclaredMember(backend=reference, weight=row.weight))
        else:
            found.append(DeclaredMember(provider_model=row.provider_model, weight=row.weight))
    return found


def _frontend(stored: Stored, row: Any) -> DeclaredFrontend:
    targets = tuple(stored.targets.get(row.id, ()))
    rules = tuple(_rule(stored, rule) for rule in stored.rules.get(row.id, ()))
    return _of(DeclaredFrontend, row, targets=targets, rules=rules)


def _rule(stored: Stored, row: Any) -> RuleForm:
    targets = tuple(stored.rule_targets.get(row.id, ()))
    return _of(RuleForm, row, when=row.conditions, targets=targets)


def _principal(stored: Stored, row: Any) -> DeclaredPrincipal:
    limits, budget = stored.limits.get(row.id), stored.budgets.get(row.id)
    return DeclaredPrincipal(
        name=row.name,
        kind=row.kind,
        roles=tuple(stored.held.get(row.id, ())),
        limits=None if limits is None else _of(DeclaredLimits, limits),
        budget=None if budget is None else _budget(budget),
    )


def _budget(row: Any) -> DeclaredBudget:
    starts_at = None if row.starts_at is None else row.starts_at.astimezone(datetime.UTC)
    return _of(DeclaredBudget, row, starts_at=starts_at)


def _sorted(permissions: Iterable[Permission]) -> tuple[Permission, ...]:
    return tuple(sorted(permissions, key=lambda held: (held.verb, held.resource)))
