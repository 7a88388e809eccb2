"""Where requests go: providers, provider models and backends, pools, frontend models and their routes.

Intent and finding are two columns everywhere: `state` is what a person wants (with who, when and why),
`condition` is what was found. Targets are bound by name, without a foreign key: they may be unresolved.
"""

from __future__ import annotations

import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Double,
    ForeignKey,
    Index,
    Integer,
    SmallInteger,
    UniqueConstraint,
    false,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from fastllm_control.tables.base import Base, Id, Instant

NOW = func.now()
POLICIES = "('weighted', 'cache-affinity', 'least-loaded', 'lowest-latency', 'round-robin', 'cheapest')"
STATES = "('active', 'draining', 'disabled')"


class Provider(Base):
    """An endpoint and the credential for reaching it.

    `credential` and `extra_headers` are sealed (`secrets`). `address` is `api_base` in canonical form, by
    which a beat finds its provider; it need not be unique. The lease columns are those of a `dynamic`
    provider: `owner_id` is the principal that registered it, `absent_since` starts the clock of its deletion,
    and `agent_draining` is the node's wish, beside the operator's `state`.
    """

    __tablename__ = "providers"
    __table_args__ = (
        CheckConstraint("kind IN ('static', 'cloud', 'dynamic')", name="kind"),
        CheckConstraint("protocol IN ('openai', 'anthropic', 'both')", name="protocol"),
        CheckConstraint("stream_usage IN ('inject', 'never')", name="stream_usage"),
        CheckConstraint(f"state IN {STATES}", name="state"),
        CheckConstraint(
            "condition IN ('ok', 'degraded', 'needs_credential', 'unreachable')", name="condition"
        ),
        Index(None, "address"),
        Index(None, "owner_id"),
        Index(None, "lease_expires_at"),
    )

    id: Mapped[Id]
    name: Mapped[str] = mapped_column(unique=True)
    kind: Mapped[str]
    catalogue_key: Mapped[str | None]
    api_base: Mapped[str]
    address: Mapped[str]
    protocol: Mapped[str] = mapped_column(server_default=text("'openai'"))
    credential: Mapped[str | None]
    auth_header: Mapped[str] = mapped_column(server_default=text("'authorization'"))
    auth_scheme: Mapped[str | None]
    extra_headers: Mapped[str | None]
    stream_usage: Mapped[str] = mapped_column(server_default=text("'inject'"))
    ca: Mapped[str | None]
    server_name: Mapped[str | None]
    node: Mapped[str | None]
    engine: Mapped[str | None]
    owner_id: Mapped[UUID | None] = mapped_column(ForeignKey("principals.id", ondelete="SET NULL"))
    lease_ttl_seconds: Mapped[int | None] = mapped_column(Integer)
    lease_expires_at: Mapped[datetime.datetime | None]
    last_beat_at: Mapped[datetime.datetime | None]
    agent_draining: Mapped[bool] = mapped_column(server_default=false())
    state: Mapped[str] = mapped_column(server_default=text("'active'"))
    state_by: Mapped[str | None]
    state_reason: Mapped[str | None]
    state_at: Mapped[Instant] = mapped_column(server_default=NOW)
    condition: Mapped[str] = mapped_column(server_default=text("'ok'"))
    reason: Mapped[str | None]
    condition_at: Mapped[Instant] = mapped_column(server_default=NOW)
    failed_probes: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    last_probe_at: Mapped[datetime.datetime | None]
    absent_since: Mapped[datetime.datetime | None]
    drift: Mapped[Any | None] = mapped_column(JSONB(none_as_null=True))
    created_at: Mapped[Instant] = mapped_column(server_default=NOW)
    updated_at: Mapped[Instant] = mapped_column(server_default=NOW)


class CatalogueEntry(Base):
    """A known cloud provider or engine: what is needed beyond a credential. `source` is where it was read."""

    __tablename__ = "provider_catalogue"
    __table_args__ = (
        CheckConstraint("protocol IN ('openai', 'anthropic', 'both')", name="protocol"),
        CheckConstraint("stream_usage IN ('inject', 'never')", name="stream_usage"),
    )

    key: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    api_base: Mapped[str]
    protocol: Mapped[str] = mapped_column(server_default=text("'openai'"))
    auth_header: Mapped[str] = mapped_column(server_default=text("'authorization'"))
    auth_scheme: Mapped[str | None]
    extra_headers: Mapped[Any | None] = mapped_column(JSONB(none_as_null=True))
    credential_kinds: Mapped[Any] = mapped_column(JSONB, server_default=text("'[]'::jsonb"))
    stream_usage: Mapped[str] = mapped_column(server_default=text("'inject'"))
    self_hosted: Mapped[bool] = mapped_column(server_default=false())
    notes: Mapped[str | None]
    source: Mapped[str | None]


class ProviderModel(Base):
    """Inventory. Prices are micro-units per million tokens. `context_length_set` says that an operator set
    the context length, so that discovery leaves it alone."""

    __tablename__ = "provider_models"
    __table_args__ = (
        CheckConstraint("context_length > 0", name="context_length"),
        CheckConstraint("input_price_per_mtok >= 0", name="input_price"),
        CheckConstraint("output_price_per_mtok >= 0", name="output_price"),
        CheckConstraint("cached_input_price_per_mtok >= 0", name="cached_input_price"),
    )

    id: Mapped[Id]
    name: Mapped[str] = mapped_column(unique=True)
    context_length: Mapped[int | None] = mapped_column(BigInteger)
    context_length_set: Mapped[bool] = mapped_column(server_default=false())
    input_price_per_mtok: Mapped[int | None] = mapped_column(BigInteger)
    output_price_per_mtok: Mapped[int | None] = mapped_column(BigInteger)
    cached_input_price_per_mtok: Mapped[int | None] = mapped_column(BigInteger)
    created_at: Mapped[Instant] = mapped_column(server_default=NOW)
    updated_at: Mapped[Instant] = mapped_column(server_default=NOW)


class Backend(Base):
    """One provider serving one provider model under an upstream name. NULL settings: the deployment's value.

    `learned` backends were found by asking the provider, the others were typed in.
    """

    __tablename__ = "backends"
    __table_args__ = (
        UniqueConstraint("provider_model_id", "provider_id", "upstream_model"),
        Index(None, "provider_id", "upstream_model"),
        CheckConstraint(f"state IN {STATES}", name="state"),
        CheckConstraint("condition IN ('ok', 'pending', 'drifted', 'degraded')", name="condition"),
        CheckConstraint("upstream_timeout_seconds > 0", name="upstream_timeout"),
        CheckConstraint("response_timeout_seconds > 0", name="response_timeout"),
        CheckConstraint("health_timeout_seconds > 0", name="health_timeout"),
        CheckConstraint("unhealthy_after > 0", name="unhealthy_after"),
        CheckConstraint("consecutive_timeout_threshold > 0", name="consecutive_timeout_threshold"),
        CheckConstraint("admission_max_concurrent > 0", name="admission_max_concurrent"),
        CheckConstraint("admission_high_water > 0", name="admission_high_water"),
        CheckConstraint("admission_max_queued >= 0", name="admission_max_queued"),
        CheckConstraint("admission_max_wait_seconds >= 0", name="admission_max_wait"),
    )

    id: Mapped[Id]
    provider_id: Mapped[UUID] = mapped_column(ForeignKey("providers.id", ondelete="CASCADE"))
    provider_model_id: Mapped[UUID] = mapped_column(ForeignKey("provider_models.id", ondelete="CASCADE"))
    upstream_model: Mapped[str]
    learned: Mapped[bool] = mapped_column(server_default=false())
    state: Mapped[str] = mapped_column(server_default=text("'active'"))
    state_by: Mapped[str | None]
    state_reason: Mapped[str | None]
    state_at: Mapped[Instant] = mapped_column(server_default=NOW)
    condition: Mapped[str] = mapped_column(server_default=text("'ok'"))
    reason: Mapped[str | None]
    condition_at: Mapped[Instant] = mapped_column(server_default=NOW)
    upstream_timeout_seconds: Mapped[float | None] = mapped_column(Double)
    response_timeout_seconds: Mapped[float | None] = mapped_column(Double)
    health_timeout_seconds: Mapped[float | None] = mapped_column(Double)
    unhealthy_after: Mapped[int | None] = mapped_column(Integer)
    consecutive_timeout_threshold: Mapped[int | None] = mapped_column(Integer)
    admission_max_concurrent: Mapped[int | None] = mapped_column(Integer)
    admission_high_water: Mapped[int | None] = mapped_column(Integer)
    admission_max_queued: Mapped[int | None] = mapped_column(Integer)
    admission_max_wait_seconds: Mapped[float | None] = mapped_column(Double)
    created_at: Mapped[Instant] = mapped_column(server_default=NOW)
    updated_at: Mapped[Instant] = mapped_column(server_default=NOW)


class Acceptance(Base):
    """A principal whose hosts may serve a provider model that some target names. By the model's name: it
    survives the deletion of the model, and covers the principal's other hosts."""

    __tablename__ = "acceptances"

    principal_id: Mapped[UUID] = mapped_column(
        ForeignKey("principals.id", ondelete="CASCADE"), primary_key=True
    )
    provider_model: Mapped[str] = mapped_column(primary_key=True)
    accepted_by: Mapped[str]
    accepted_at: Mapped[Instant] = mapped_column(server_default=NOW)


class Pool(Base):
    """A named balancing policy over existing backends. Shares its name space with provider models."""

    __tablename__ = "pools"
    __table_args__ = (CheckConstraint(f"policy IN {POLICIES}", name="policy"),)

    id: Mapped[Id]
    name: Mapped[str] = mapped_column(unique=True)
    policy: Mapped[str]
    created_at: Mapped[Instant] = mapped_column(server_default=NOW)
    updated_at: Mapped[Instant] = mapped_column(server_default=NOW)


class PoolMember(Base):
    """One backend, or all those of a provider model, in a pool. A model is bound by name, as a target is: the
    membership stays when the model goes, and counts again when the name returns.

    `provider_model_id` is not used any more; the release before read it.
    """

    __tablename__ = "pool_members"
    __table_args__ = (
        CheckConstraint("num_nonnulls(provider_model, backend_id) = 1", name="one_reference"),
        CheckConstraint("weight > 0", name="weight"),
        Index(None, "provider_model"),
        Index(None, "provider_model_id"),
        Index(None, "backend_id"),
    )

    pool_id: Mapped[UUID] = mapped_column(ForeignKey("pools.id", ondelete="CASCADE"), primary_key=True)
    position: Mapped[int] = mapped_column(SmallInteger, primary_key=True, autoincrement=False)
    provider_model: Mapped[str | None]
    provider_model_id: Mapped[UUID | None] = mapped_column(
        ForeignKey("provider_models.id", ondelete="CASCADE")
    )
    backend_id: Mapped[UUID | None] = mapped_column(ForeignKey("backends.id", ondelete="CASCADE"))
    weight: Mapped[int] = mapped_column(Integer, server_default=text("1"))


class FrontendModel(Base):
    """What a client asks for. `policy` is among its targets; NULL is `weighted`."""

    __tablename__ = "frontend_models"
    __table_args__ = (CheckConstraint(f"policy IN {POLICIES}", name="policy"),)

    id: Mapped[Id]
    name: Mapped[str] = mapped_column(unique=True)
    policy: Mapped[str | None]
    retry_on_timeout: Mapped[bool] = mapped_column(server_default=false())
    created_at: Mapped[Instant] = mapped_column(server_default=NOW)
    updated_at: Mapped[Instant] = mapped_column(server_default=NOW)


class DefaultTarget(Base):
    """Where a frontend model goes when no rule decides."""

    __tablename__ = "default_targets"
    __table_args__ = (CheckConstraint("weight >= 0", name="weight"), Index(None, "target"))

    frontend_model_id: Mapped[UUID] = mapped_column(
        ForeignKey("frontend_models.id", ondelete="CASCADE"), primary_key=True
    )
    position: Mapped[int] = mapped_column(SmallInteger, primary_key=True, autoincrement=False)
    target: Mapped[str]
    weight: Mapped[int] = mapped_column(Integer, server_default=text("1"))


class RoutingRule(Base):
    """One rule of a frontend model.

    `conditions` is `fastllm_shared.snapshot.Conditions` as JSON; `jump` names a frontend model. Positions are
    checked at the commit, so that a list can be put in another order.
    """

    __tablename__ = "routing_rules"
    __table_args__ = (
        UniqueConstraint("frontend_model_id", "position", deferrable=True, initially="DEFERRED"),
        CheckConstraint("action IN ('route', 'deny', 'jump')", name="action"),
        CheckConstraint(f"policy IN {POLICIES}", name="policy"),
        CheckConstraint("deny_status BETWEEN 400 AND 499", name="deny_status"),
        CheckConstraint("(action = 'deny') = (deny_status IS NOT NULL)", name="deny"),
        CheckConstraint("(action = 'jump') = (jump IS NOT NULL)", name="jump"),
        Index(None, "jump"),
    )

    id: Mapped[Id]
    frontend_model_id: Mapped[UUID] = mapped_column(ForeignKey("frontend_models.id", ondelete="CASCADE"))
    position: Mapped[int] = mapped_column(Integer)
    conditions: Mapped[Any] = mapped_column(JSONB, server_default=text("'{}'::jsonb"))
    action: Mapped[str] = mapped_column(server_default=text("'route'"))
    policy: Mapped[str | None]
    tag: Mapped[str | None]
    deny_status: Mapped[int | None] = mapped_column(SmallInteger)
    deny_message: Mapped[str | None]
    jump: Mapped[str | None]
    created_at: Mapped[Instant] = mapped_column(server_default=NOW)
    updated_at: Mapped[Instant] = mapped_column(server_default=NOW)


class RuleTarget(Base):
    """Where a rule goes that routes."""

    __tablename__ = "rule_targets"
    __table_args__ = (CheckConstraint("weight >= 0", name="weight"), Index(None, "target"))

    rule_id: Mapped[UUID] = mapped_column(
        ForeignKey("routing_rules.id", ondelete="CASCADE"), primary_key=True
    )
    position: Mapped[int] = mapped_column(SmallInteger, primary_key=True, autoincrement=False)
    target: Mapped[str]
    weight: Mapped[int] = mapped_column(Integer, server_default=text("1"))
