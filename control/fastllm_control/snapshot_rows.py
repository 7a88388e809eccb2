"""The rows that a snapshot is built from: what `repositories.content` reads and `snapshot` compiles.

Only the columns that proxies need; times are Unix seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec

from fastllm_shared.snapshot import (
    BudgetEntry,
    KeyEntry,
    LimitsEntry,
    Policy,
    PrincipalKind,
    Protocol,
    ProviderKind,
    RuleAction,
    State,
    StreamUsage,
)


class PrincipalRow(msgspec.Struct, frozen=True):
    id: UUID
    name: str
    kind: PrincipalKind
    limits: LimitsEntry | None
    budget: BudgetEntry | None


class ProviderRow(msgspec.Struct, frozen=True):
    """`credential` and `extra_headers` are sealed; the latter is a JSON object of texts."""

    id: UUID
    name: str
    kind: ProviderKind
    api_base: str
    protocol: Protocol
    credential: str | None
    auth_header: str
    auth_scheme: str | None
    extra_headers: str | None
    stream_usage: StreamUsage
    ca: str | None
    server_name: str | None
    state: State
    condition: str
    agent_draining: bool


class ModelRow(msgspec.Struct, frozen=True):
    id: UUID
    name: str
    context_length: int | None
    input_price_per_mtok: int | None
    output_price_per_mtok: int | None
    cached_input_price_per_mtok: int | None


class BackendRow(msgspec.Struct, frozen=True):
    id: UUID
    provider_id: UUID
    provider_model_id: UUID
    upstream_model: str
    state: State
    condition: str
    upstream_timeout_seconds: float | None
    response_timeout_seconds: float | None
    health_timeout_seconds: float | None
    unhealthy_after: int | None
    consecutive_timeout_threshold: int | None
    admission_max_concurrent: int | None
    admission_high_water: int | None
    admission_max_queued: int | None
    admission_max_wait_seconds: float | None


class PoolRow(msgspec.Struct, frozen=True):
    id: UUID
    name: str
    policy: Policy


class PoolMemberRow(msgspec.Struct, frozen=True):
    pool_id: UUID
    provider_model: str | None
    backend_id: UUID | None
    weight: int


class FrontendModelRow(msgspec.Struct, frozen=True):
    id: UUID
    name: str
    policy: Policy | None
    retry_on_timeout: bool
    created_at: float


class RuleRow(msgspec.Struct, frozen=True):
    id: UUID
    frontend_model_id: UUID
    position: int
    conditions: Any
    action: RuleAction
    policy: Policy | None
    tag: str | None
    deny_status: int | None
    deny_message: str | None
    jump: str | None


class TargetRow(msgspec.Struct, frozen=True):
    """`owner_id` is the frontend model's (a default target) or the rule's."""

    owner_id: UUID
    target: str
    weight: int


class Rows(msgspec.Struct, frozen=True):
    """All content at one version, each kind in its own order; `roles` and `resources` by principal."""

    version: int
    history: str
    keys: Sequence[KeyEntry] = ()
    principals: Sequence[PrincipalRow] = ()
    roles: Mapping[UUID, Sequence[str]] = {}
    resources: Mapping[UUID, Sequence[str]] = {}
    providers: Sequence[ProviderRow] = ()
    models: Sequence[ModelRow] = ()
    backends: Sequence[BackendRow] = ()
    pools: Sequence[PoolRow] = ()
    pool_members: Sequence[PoolMemberRow] = ()
    frontend_models: Sequence[FrontendModelRow] = ()
    rules: Sequence[RuleRow] = ()
    rule_targets: Sequence[TargetRow] = ()
    default_targets: Sequence[TargetRow] = ()
    fallback_model: str | None = None
