"""What is wrong with a document whose shape is right, found together and before anything is written.

What a service judges is judged by that service's own check. What only a write can find (a circle of jumps,
the last administrator) the write refuses, and everything with it. A name that may outlive what it names
(targets, jumps, models in pools, the fallback) may name nothing here too: a file must be able to say what the
database holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from fastllm_control.declared.document import (
    DeclaredModel,
    DeclaredPool,
    DeclaredPrincipal,
    DeclaredProvider,
    Document,
    SecretReference,
)
from fastllm_control.declared.export import Current
from fastllm_control.declared.plan import SECTION_OF, by_name
from fastllm_control.declared.problems import Lines, Problem
from fastllm_control.errors import ApiError
from fastllm_control.forms import NewProvider
from fastllm_control.naming import refuse_uuid
from fastllm_control.rule_checks import refuse_repeated, refuse_unfit
from fastllm_control.services.providers import check as check_provider
from fastllm_control.services.roles import checked_permission
from fastllm_shared.addresses import AddressPolicy
from fastllm_shared.ids import has_uuid_shape

_ONE_SPACE = ("provider_models", "pools")

Found = Iterator[tuple[str, str]]
"""Field and message."""


def problems_of(
    document: Document, lines: Lines, current: Current, addresses: AddressPolicy, *, prune: bool
) -> list[Problem]:
    """Everything that can be said without writing."""
    found: list[tuple[str, str]] = [
        *_names(document),
        *_providers(document, current, addresses),
        *_models(document, current, prune),
        *_pools(document, current, prune),
        *_frontends(document),
        *_roles(document, current),
        *_principals(document, current, prune),
    ]
    return [lines.problem(field, message) for field, message in found]


def provider_form(entry: DeclaredProvider, key: str | None, headers: Mapping[str, str]) -> NewProvider:
    """A provider of the file as the admin API would be sent it."""
    names = [
        name for name in NewProvider.__struct_fields__ if name not in ("upstream_api_key", "extra_headers")
    ]
    plain = {name: getattr(entry, name) for name in names}
    return NewProvider(**plain, upstream_api_key=key, extra_headers=dict(headers))


def _names(document: Document) -> Found:
    """No name twice in its name space, none that could be taken for an id."""
    spaces: dict[object, dict[str, str]] = {}
    for section in SECTION_OF.values():
        space = _ONE_SPACE if section in _ONE_SPACE else section
        taken = spaces.setdefault(space, {})
        for index, entry in enumerate(getattr(document, section) or ()):
            field = f"{section}[{index}].name"
            yield from _refusals(f"{section}[{index}]", refuse_uuid, entry.name)
            if entry.name in taken:
                yield field, f"{entry.name!r} is the name of {taken[entry.name]} already"
            taken.setdefault(entry.name, f"{section}[{index}]")


def _providers(document: Document, current: Current, addresses: AddressPolicy) -> Found:
    before = by_name(current.document.providers)
    for index, entry in enumerate(document.providers or ()):
        at = f"providers[{index}]"
        literal = {
            name: "" if isinstance(value, SecretReference) else value
            for name, value in entry.extra_headers.items()
        }
        form = provider_form(entry, None, literal)
        yield from _refusals(at, check_provider, form, addresses)
        if entry.name in current.leased:
            yield f"{at}.name", f"{entry.name!r} is a leased provider, which its agent registers"
        elif entry.name in before and before[entry.name].kind != entry.kind:
            there = before[entry.name].kind
            yield (
                f"{at}.kind",
                f"a {there} provider cannot become {entry.kind}: delete it, or use another name",
            )


def _models(document: Document, current: Current, prune: bool) -> Found:
    known = names_after("providers", document, current, prune)
    for index, model in enumerate(document.provider_models or ()):
        seen: set[tuple[str, str]] = set()
        for place, backend in enumerate(model.backends):
            at = f"provider_models[{index}].backends[{place}]"
            if backend.provider in current.leased:
                yield f"{at}.provider", f"{backend.provider!r} is leased: its agent registers what it serves"
            elif backend.provider not in known:
                yield f"{at}.provider", f"there is no provider {backend.provider!r}"
            if (backend.provider, backend.upstream_model) in seen:
                message = f"{backend.provider} serves this model as {backend.upstream_model!r} already"
                yield f"{at}.upstream_model", message
            seen.add((backend.provider, backend.upstream_model))


def _pools(document: Document, current: Current, prune: bool) -> Found:
    known = names_after("provider_models", document, current, prune)
    models: dict[str, DeclaredModel] = by_name(current.document.provider_models) | by_name(
        document.provider_models
    )
    backends = current.leased_backends | {
        (one.provider, name, one.upstream_model) for name in known for one in _backends(models, name)
    }
    pools = names_after("pools", document, current, prune)
    for index, pool in enumerate(document.pools or ()):
        yield from _members(pool, f"pools[{index}]", pools, backends)


def _members(
    pool: DeclaredPool, at: str, pools: frozenset[str], backends: frozenset[tuple[str, str, str]]
) -> Found:
    seen = set()
    for place, member in enumerate(pool.members):
        where = f"{at}.members[{place}]"
        one = member.backend
        if member.provider_model is not None:
            yield from _id(f"{where}.provider_model", "provider model", member.provider_model)
        if member.provider_model in pools:
            message = f"{member.provider_model!r} is a pool: pools hold provider models and backends"
            yield f"{where}.provider_model", message
        if one is not None and (one.provider, one.provider_model, one.upstream_model) not in backends:
            message = f"{one.provider!r} does not serve {one.provider_model!r} as {one.upstream_model!r}"
            yield f"{where}.backend", message
        reference = member.provider_model or one
        if reference in seen:
            yield where, "it is a member already: give it one weight"
        seen.add(reference)


def _frontends(document: Document) -> Found:
    for index, model in enumerate(document.frontend_models or ()):
        at = f"frontend_models[{index}]"
        yield from _refusals(at, refuse_repeated, model.targets)
        for place, rule in enumerate(model.rules):
            yield from _refusals(f"{at}.rules[{place}]", refuse_unfit, rule)
            if rule.jump is not None:
                yield from _id(f"{at}.rules[{place}].jump", "frontend model", rule.jump)
    if isinstance(document.fallback_model, str):
        yield from _id("fallback_model", "frontend model", document.fallback_model)


def _id(field: str, kind: str, name: str) -> Found:
    """Files name things; an id could never be the name of anything."""
    if has_uuid_shape(name):
        yield field, f"there is no {kind} {name!r}: files know names, no ids"


def _roles(document: Document, current: Current) -> Found:
    for index, role in enumerate(document.roles or ()):
        at = f"roles[{index}]"
        if role.name in current.built_in:
            yield f"{at}.name", f"{role.name!r} is one of the built-in roles, which can be held, not declared"
        for place, permission in enumerate(role.permissions):
            yield from _refusals(f"{at}.permissions[{place}]", checked_permission, permission)


def _principals(document: Document, current: Current, prune: bool) -> Found:
    known = names_after("roles", document, current, prune) | current.built_in
    before: dict[str, DeclaredPrincipal] = by_name(current.document.principals)
    for index, principal in enumerate(document.principals or ()):
        at = f"principals[{index}]"
        for place, role in enumerate(principal.roles):
            if role not in known:
                yield f"{at}.roles[{place}]", f"there is no role {role!r}"
        there = before.get(principal.name)
        if there is not None and there.kind != principal.kind:
            message = f"{principal.name!r} is of the kind {there.kind}, which cannot be changed"
            yield f"{at}.kind", message


def names_after(section: str, document: Document, current: Current, prune: bool) -> frozenset[str]:
    """The names of a section when all is done."""
    managed: Sequence[Any] | None = getattr(document, section)
    wanted = {entry.name for entry in managed or ()}
    if managed is not None and prune:
        return frozenset(wanted)
    return frozenset(wanted | {entry.name for entry in getattr(current.document, section)})


def _backends(models: Mapping[str, DeclaredModel], name: str) -> Iterable[Any]:
    return models[name].backends if name in models else ()


def _refusals(at: str, check: Callable[..., object], *arguments: object) -> Found:
    """What a service's own check refuses, as a problem of what stands there."""
    try:
        check(*arguments)
    except ApiError as error:
        yield ".".join(part for part in (at, error.field or "") if part), error.message
