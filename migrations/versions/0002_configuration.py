"""Providers, provider models and backends, pools, frontend models and their routes.

Safe for the previous release's code: it only creates tables.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"

POLICIES = "('weighted', 'cache-affinity', 'least-loaded', 'lowest-latency', 'round-robin', 'cheapest')"
STATES = "('active', 'draining', 'disabled')"
PROTOCOLS = "('openai', 'anthropic', 'both')"
Column = sa.Column[object]


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("SET LOCAL statement_timeout = '60s'")
    _providers()
    _catalogue()
    _provider_models()
    _backends()
    _acceptances()
    _pools()
    _frontend_models()
    _rules()


def _text(name: str, *, nullable: bool = False, default: str | None = None) -> Column:
    server = None if default is None else sa.text(f"'{default}'")
    return sa.Column(name, sa.Text(), nullable=nullable, server_default=server)


def _instant(name: str, *, nullable: bool = False) -> Column:
    default = None if nullable else sa.text("now()")
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable, server_default=default)


def _flag(name: str) -> Column:
    return sa.Column(name, sa.Boolean(), nullable=False, server_default=sa.false())


def _number(name: str, kind: type[sa.types.TypeEngine[Any]] = sa.Integer) -> Column:
    return sa.Column(name, kind())


def _id(table: str) -> tuple[Column, sa.Constraint]:
    return sa.Column("id", sa.Uuid(), nullable=False), sa.PrimaryKeyConstraint("id", name=op.f(f"pk_{table}"))


def _owner(table: str, column: str, target: str, *, nullable: bool = False, lost: str = "CASCADE") -> Column:
    key = sa.ForeignKey(f"{target}.id", ondelete=lost, name=op.f(f"fk_{table}_{column}_{target}"))
    return sa.Column(column, sa.Uuid(), key, nullable=nullable)


def _position() -> Column:
    return sa.Column("position", sa.SmallInteger(), nullable=False, autoincrement=False)


def _weight(table: str) -> tuple[Column, sa.Constraint]:
    column: Column = sa.Column("weight", sa.Integer(), nullable=False, server_default=sa.text("1"))
    return column, _check(table, "weight", "weight > 0")


def _check(table: str, name: str, rule: str) -> sa.Constraint:
    return sa.CheckConstraint(rule, name=op.f(f"ck_{table}_{name}"))


def _unique(table: str, *columns: str) -> sa.Constraint:
    return sa.UniqueConstraint(*columns, name=op.f(f"uq_{table}_{'_'.join(columns)}"))


def _index(table: str, *columns: str) -> None:
    op.create_index(op.f(f"ix_{table}_{'_'.join(columns)}"), table, list(columns))


def _state(table: str) -> tuple[Column | sa.Constraint, ...]:
    """What a person wants of a row: with who and why."""
    return (
        _text("state", default="active"),
        _text("state_by", nullable=True),
        _text("state_reason", nullable=True),
        _instant("state_at"),
        _check(table, "state", f"state IN {STATES}"),
    )


def _condition(table: str, conditions: str) -> tuple[Column | sa.Constraint, ...]:
    """What was found of it."""
    return (
        _text("condition", default="ok"),
        _text("reason", nullable=True),
        _instant("condition_at"),
        _check(table, "condition", f"condition IN {conditions}"),
    )


def _providers() -> None:
    op.create_table(
        "providers",
        *_id("providers"),
        _text("name"),
        _text("kind"),
        _text("catalogue_key", nullable=True),
        _text("api_base"),
        _text("address"),
        _text("protocol", default="openai"),
        _text("credential", nullable=True),
        _text("auth_header", default="authorization"),
        _text("auth_scheme", nullable=True),
        _text("extra_headers", nullable=True),
        _text("stream_usage", default="inject"),
        _text("ca", nullable=True),
        _text("server_name", nullable=True),
        _text("node", nullable=True),
        _text("engine", nullable=True),
        _owner("providers", "owner_id", "principals", nullable=True, lost="SET NULL"),
        _number("lease_ttl_seconds"),
        _instant("lease_expires_at", nullable=True),
        _instant("last_beat_at", nullable=True),
        _flag("agent_draining"),
        *_state("providers"),
        *_condition("providers", "('ok', 'degraded', 'needs_credential', 'unreachable')"),
        sa.Column("failed_probes", sa.Integer(), nullable=False, server_default=sa.text("0")),
        _instant("last_probe_at", nullable=True),
        _instant("absent_since", nullable=True),
        sa.Column("drift", postgresql.JSONB()),
        _instant("created_at"),
        _instant("updated_at"),
        _unique("providers", "name"),
        _check("providers", "kind", "kind IN ('static', 'cloud', 'dynamic')"),
        _check("providers", "protocol", f"protocol IN {PROTOCOLS}"),
        _check("providers", "stream_usage", "stream_usage IN ('inject', 'never')"),
    )
    _index("providers", "address")
    _index("providers", "owner_id")
    _index("providers", "lease_expires_at")


def _catalogue() -> None:
    op.create_table(
        "provider_catalogue",
        _text("key"),
        _text("name"),
        _text("api_base"),
        _text("protocol", default="openai"),
        _text("auth_header", default="authorization"),
        _text("auth_scheme", nullable=True),
        sa.Column("extra_headers", postgresql.JSONB()),
        sa.Column(
            "credential_kinds", postgresql.JSONB(), nullable=False, server_default=sa.text("'[]'::jsonb")
        ),
        _text("stream_usage", default="inject"),
        _flag("self_hosted"),
        _text("notes", nullable=True),
        _text("source", nullable=True),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_provider_catalogue")),
        _unique("provider_catalogue", "name"),
        _check("provider_catalogue", "protocol", f"protocol IN {PROTOCOLS}"),
        _check("provider_catalogue", "stream_usage", "stream_usage IN ('inject', 'never')"),
    )


def _provider_models() -> None:
    op.create_table(
        "provider_models",
        *_id("provider_models"),
        _text("name"),
        _number("context_length", sa.BigInteger),
        _flag("context_length_set"),
        _number("input_price_per_mtok", sa.BigInteger),
        _number("output_price_per_mtok", sa.BigInteger),
        _number("cached_input_price_per_mtok", sa.BigInteger),
        _instant("created_at"),
        _instant("updated_at"),
        _unique("provider_models", "name"),
        _check("provider_models", "context_length", "context_length > 0"),
        _check("provider_models", "input_price", "input_price_per_mtok >= 0"),
        _check("provider_models", "output_price", "output_price_per_mtok >= 0"),
        _check("provider_models", "cached_input_price", "cached_input_price_per_mtok >= 0"),
    )


def _backends() -> None:
    op.create_table(
        "backends",
        *_id("backends"),
        _owner("backends", "provider_id", "providers"),
        _owner("backends", "provider_model_id", "provider_models"),
        _text("upstream_model"),
        _flag("learned"),
        *_state("backends"),
        *_condition("backends", "('ok', 'pending', 'drifted', 'degraded')"),
        _number("upstream_timeout_seconds", sa.Double),
        _number("response_timeout_seconds", sa.Double),
        _number("health_timeout_seconds", sa.Double),
        _number("unhealthy_after"),
        _number("consecutive_timeout_threshold"),
        _number("admission_max_concurrent"),
        _number("admission_high_water"),
        _number("admission_max_queued"),
        _number("admission_max_wait_seconds", sa.Double),
        _instant("created_at"),
        _instant("updated_at"),
        _unique("backends", "provider_model_id", "provider_id", "upstream_model"),
        _check("backends", "upstream_timeout", "upstream_timeout_seconds > 0"),
        _check("backends", "response_timeout", "response_timeout_seconds > 0"),
        _check("backends", "health_timeout", "health_timeout_seconds > 0"),
        _check("backends", "unhealthy_after", "unhealthy_after > 0"),
        _check("backends", "consecutive_timeout_threshold", "consecutive_timeout_threshold > 0"),
        _check("backends", "admission_max_concurrent", "admission_max_concurrent > 0"),
        _check("backends", "admission_high_water", "admission_high_water > 0"),
        _check("backends", "admission_max_queued", "admission_max_queued >= 0"),
        _check("backends", "admission_max_wait", "admission_max_wait_seconds >= 0"),
    )
    _index("backends", "provider_id", "upstream_model")


def _acceptances() -> None:
    op.create_table(
        "acceptances",
        _owner("acceptances", "principal_id", "principals"),
        _text("provider_model"),
        _text("accepted_by"),
        _instant("accepted_at"),
        sa.PrimaryKeyConstraint("principal_id", "provider_model", name=op.f("pk_acceptances")),
    )


def _pools() -> None:
    op.create_table(
        "pools",
        *_id("pools"),
        _text("name"),
        _text("policy"),
        _instant("created_at"),
        _instant("updated_at"),
        _unique("pools", "name"),
        _check("pools", "policy", f"policy IN {POLICIES}"),
    )
    op.create_table(
        "pool_members",
        _owner("pool_members", "pool_id", "pools"),
        _position(),
        _owner("pool_members", "provider_model_id", "provider_models", nullable=True),
        _owner("pool_members", "backend_id", "backends", nullable=True),
        *_weight("pool_members"),
        sa.PrimaryKeyConstraint("pool_id", "position", name=op.f("pk_pool_members")),
        _check("pool_members", "one_reference", "num_nonnulls(provider_model_id, backend_id) = 1"),
    )
    _index("pool_members", "provider_model_id")
    _index("pool_members", "backend_id")


def _frontend_models() -> None:
    op.create_table(
        "frontend_models",
        *_id("frontend_models"),
        _text("name"),
        _text("policy", nullable=True),
        _flag("retry_on_timeout"),
        _instant("created_at"),
        _instant("updated_at"),
        _unique("frontend_models", "name"),
        _check("frontend_models", "policy", f"policy IN {POLICIES}"),
    )
    op.create_table(
        "default_targets",
        _owner("default_targets", "frontend_model_id", "frontend_models"),
        _position(),
        _text("target"),
        *_weight("default_targets"),
        sa.PrimaryKeyConstraint("frontend_model_id", "position", name=op.f("pk_default_targets")),
    )
    _index("default_targets", "target")


def _rules() -> None:
    op.create_table(
        "routing_rules",
        *_id("routing_rules"),
        _owner("routing_rules", "frontend_model_id", "frontend_models"),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("conditions", postgresql.JSONB(), nullable=False, server_default=sa.text("'{}'::jsonb")),
        _text("action", default="route"),
        _text("policy", nullable=True),
        _text("tag", nullable=True),
        _number("deny_status", sa.SmallInteger),
        _text("deny_message", nullable=True),
        _text("jump", nullable=True),
        _instant("created_at"),
        _instant("updated_at"),
        sa.UniqueConstraint(
            "frontend_model_id",
            "position",
            name=op.f("uq_routing_rules_frontend_model_id_position"),
            deferrable=True,
            initially="DEFERRED",
        ),
        _check("routing_rules", "action", "action IN ('route', 'deny', 'jump')"),
        _check("routing_rules", "policy", f"policy IN {POLICIES}"),
        _check("routing_rules", "deny_status", "deny_status BETWEEN 400 AND 499"),
        _check("routing_rules", "deny", "(action = 'deny') = (deny_status IS NOT NULL)"),
        _check("routing_rules", "jump", "(action = 'jump') = (jump IS NOT NULL)"),
    )
    _index("routing_rules", "jump")
    op.create_table(
        "rule_targets",
        _owner("rule_targets", "rule_id", "routing_rules"),
        _position(),
        _text("target"),
        *_weight("rule_targets"),
        sa.PrimaryKeyConstraint("rule_id", "position", name=op.f("pk_rule_targets")),
    )
    _index("rule_targets", "target")
