"""Rows → snapshot, purely: no database, no clock, no keys but the function that opens sealed values.

One bad row never spoils the whole. What cannot be built is left out and named in `Built.dropped`: a provider
whose credential does not open takes its backends with it, a frontend model whose rules cannot be read goes as
a whole, since leaving out one rule could let through what it was to deny.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeVar
from uuid import UUID

import msgspec

from fastllm_control.provider_secrets import Open, open_credential, open_headers
from fastllm_control.secrets import Undecryptable
from fastllm_control.snapshot_rows import (
    BackendRow,
    ModelRow,
    PrincipalRow,
    ProviderRow,
    Rows,
    RuleRow,
    TargetRow,
)
from fastllm_shared.snapshot import (
    BackendEntry,
    Conditions,
    FrontendModelEntry,
    PoolEntry,
    PoolMember,
    PrincipalEntry,
    ProviderEntry,
    ProviderModelEntry,
    RuleEntry,
    Snapshot,
    State,
    TargetEntry,
)

MODEL_RESOURCE = "model/"
EVERY_MODEL = "model/*"
DEFAULT_HIGH_WATER = 4
DEFAULT_MAX_QUEUED = 64
DEFAULT_MAX_WAIT_SECONDS = 30.0

K = TypeVar("K")
V = TypeVar("V")


class Dropped(msgspec.Struct, frozen=True):
    """A row that was left out, why, and the backends that went with it."""

    kind: Literal["provider", "frontend_model"]
    id: str
    name: str
    reason: str
    backends: tuple[str, ...] = ()


class Built(msgspec.Struct, frozen=True):
    snapshot: Snapshot
    dropped: tuple[Dropped, ...] = ()


def build(rows: Rows, open_secret: Open) -> Built:
    """The snapshot of `rows`, and what had to be left out of it."""
    dropped: list[Dropped] = []
    providers = _providers(rows, open_secret, dropped)
    usable = {row.id: row for row in rows.providers if str(row.id) in providers}
    backends = [entry for row in rows.backends if (entry := _backend(row, usable.get(row.provider_id)))]
    by_model = _grouped((entry.provider_model_id, entry.id) for entry in backends)
    snapshot = Snapshot(
        version=rows.version,
        history=rows.history,
        # A version is the microsecond of its commit by Postgres's clock, so every replica that
        # builds it says the same.
        created_at=rows.version / 1_000_000,
        keys=tuple(rows.keys),
        principals=tuple(_principal(row, rows) for row in rows.principals),
        providers=tuple(providers.values()),
        backends=tuple(backends),
        provider_models=tuple(_model(row, by_model) for row in rows.models),
        pools=_pools(rows, by_model, {entry.id for entry in backends}),
        frontend_models=_frontend_models(rows, dropped),
        fallback_model=rows.fallback_model,
    )
    return Built(snapshot, tuple(dropped))


def _principal(row: PrincipalRow, rows: Rows) -> PrincipalEntry:
    resources = rows.resources.get(row.id, ())
    named = {resource.removeprefix(MODEL_RESOURCE) for resource in resources if resource != EVERY_MODEL}
    return PrincipalEntry(
        id=str(row.id),
        name=row.name,
        kind=row.kind,
        roles=tuple(rows.roles.get(row.id, ())),
        models=tuple(sorted(named)),
        all_models=EVERY_MODEL in resources,
        limits=row.limits,
        budget=row.budget,
    )


def _providers(rows: Rows, open_secret: Open, dropped: list[Dropped]) -> dict[str, ProviderEntry]:
    found: dict[str, ProviderEntry] = {}
    for row in rows.providers:
        try:
            found[str(row.id)] = _provider(row, open_secret)
        except Undecryptable as error:
            lost = tuple(str(backend.id) for backend in rows.backends if backend.provider_id == row.id)
            dropped.append(Dropped("provider", str(row.id), row.name, str(error), lost))
    return found


def _provider(row: ProviderRow, open_secret: Open) -> ProviderEntry:
    return ProviderEntry(
        id=str(row.id),
        name=row.name,
        kind=row.kind,
        api_base=row.api_base,
        protocol=row.protocol,
        credential=open_credential(open_secret, row.id, row.credential),
        auth_header=row.auth_header,
        auth_scheme=row.auth_scheme,
        extra_headers=tuple(open_headers(open_secret, row.id, row.extra_headers).items()),
        stream_usage=row.stream_usage,
        ca=row.ca,
        server_name=row.server_name,
    )


def _backend(row: BackendRow, provider: ProviderRow | None) -> BackendEntry | None:
    """The entry, or `None` for a backend that is to get no request."""
    if provider is None:
        return None
    state = effective_state(row, provider)
    if state == "disabled" or is_out_by_condition(row, provider):
        return None
    return BackendEntry(
        id=str(row.id),
        provider_id=str(row.provider_id),
        provider_model_id=str(row.provider_model_id),
        upstream_model=row.upstream_model,
        state=state,
        upstream_timeout_seconds=row.upstream_timeout_seconds,
        response_timeout_seconds=row.response_timeout_seconds,
        health_timeout_seconds=row.health_timeout_seconds,
        unhealthy_after=row.unhealthy_after,
        consecutive_timeout_threshold=row.consecutive_timeout_threshold,
        admission_max_concurrent=row.admission_max_concurrent,
        admission_high_water=_or(row.admission_high_water, DEFAULT_HIGH_WATER),
        admission_max_queued=_or(row.admission_max_queued, DEFAULT_MAX_QUEUED),
        admission_max_wait_seconds=_or(row.admission_max_wait_seconds, DEFAULT_MAX_WAIT_SECONDS),
    )


def effective_state(backend: BackendRow, provider: ProviderRow) -> State:
    """The stricter of what was asked of the backend and of its provider."""
    states = {backend.state, provider.state}
    if "disabled" in states:
        return "disabled"
    return "draining" if "draining" in states or provider.agent_draining else "active"


def is_out_by_condition(backend: BackendRow, provider: ProviderRow) -> bool:
    """Findings take a backend out where its provider is leased; of others they only tell a person.

    `pending` is no finding but a question that an operator has not answered yet: out, whatever the provider.
    """
    if backend.condition == "pending":
        return True
    return provider.kind == "dynamic" and (
        backend.condition in ("drifted", "degraded") or provider.condition == "degraded"
    )


def _model(row: ModelRow, backends: Mapping[str, Sequence[str]]) -> ProviderModelEntry:
    return ProviderModelEntry(
        id=str(row.id),
        name=row.name,
        context_length=row.context_length,
        input_price_per_mtok=row.input_price_per_mtok,
        output_price_per_mtok=row.output_price_per_mtok,
        cached_input_price_per_mtok=row.cached_input_price_per_mtok,
        backends=tuple(backends.get(str(row.id), ())),
    )


def _pools(rows: Rows, by_model: Mapping[str, Sequence[str]], live: set[str]) -> tuple[PoolEntry, ...]:
    members = _grouped((member.pool_id, member) for member in rows.pool_members)
    named_models = {row.name: by_model.get(str(row.id), ()) for row in rows.models}
    entries = []
    for pool in rows.pools:
        of_pool = members.get(pool.id, ())
        # A backend that is a member by itself has that weight, not the one that its model has.
        own = {str(member.backend_id): member.weight for member in of_pool if member.backend_id is not None}
        weights: dict[str, int] = {}
        for member in of_pool:
            named = (
                named_models.get(member.provider_model or "", ())
                if member.backend_id is None
                else [str(member.backend_id)]
            )
            for backend_id in named:
                if backend_id in live:
                    weights.setdefault(backend_id, own.get(backend_id, member.weight))
        flat = tuple(PoolMember(backend_id, weight) for backend_id, weight in weights.items())
        entries.append(PoolEntry(id=str(pool.id), name=pool.name, policy=pool.policy, members=flat))
    return tuple(entries)


def _frontend_models(rows: Rows, dropped: list[Dropped]) -> tuple[FrontendModelEntry, ...]:
    defaults = _targets(rows.default_targets)
    rule_targets = _targets(rows.rule_targets)
    rules = _grouped((rule.frontend_model_id, rule) for rule in rows.rules)
    entries = []
    for row in rows.frontend_models:
        try:
            compiled = tuple(_rule(rule, rule_targets) for rule in rules.get(row.id, ()))
        except msgspec.ValidationError as error:
            dropped.append(Dropped("frontend_model", str(row.id), row.name, f"a rule: {error}"))
            continue
        entries.append(
            FrontendModelEntry(
                id=str(row.id),
                name=row.name,
                created_at=row.created_at,
                policy=row.policy,
                retry_on_timeout=row.retry_on_timeout,
                rules=compiled,
                targets=tuple(defaults.get(row.id, ())),
            )
        )
    return tuple(entries)


def _rule(row: RuleRow, targets: Mapping[UUID, Sequence[TargetEntry]]) -> RuleEntry:
    return RuleEntry(
        position=row.position,
        when=msgspec.convert(row.conditions, Conditions),
        action=row.action,
        targets=tuple(targets.get(row.id, ())),
        policy=row.policy,
        tag=row.tag,
        deny_status=row.deny_status,
        deny_message=row.deny_message,
        jump=row.jump,
    )


def _targets(rows: Sequence[TargetRow]) -> Mapping[UUID, Sequence[TargetEntry]]:
    return _grouped((row.owner_id, TargetEntry(row.target, row.weight)) for row in rows)


def _grouped(pairs: Iterable[tuple[K, V]]) -> Mapping[K, Sequence[V]]:
    groups: defaultdict[K, list[V]] = defaultdict(list)
    for key, value in pairs:
        groups[key].append(value)
    return groups


def _or(value: V | None, default: V) -> V:
    return default if value is None else value
