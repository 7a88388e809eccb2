"""Principals, roles, keys, sessions, limits, budgets; the audit log, the version row, settings.

Safe for the previous release's code: there is none before it, and it only creates tables.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from fastllm_shared.ids import uuid7

revision = "0001"
down_revision = None

SEEDED = {
    "admin": (
        ("model:invoke", "model/*"),
        ("key:create", "*"),
        ("key:revoke", "*"),
        ("access:write", "*"),
        ("config:read", "*"),
        ("config:write", "*"),
        ("usage:read", "*"),
    ),
    "operator": (
        ("key:create", "*"),
        ("key:revoke", "*"),
        ("config:read", "*"),
        ("config:write", "*"),
        ("usage:read", "*"),
    ),
    "inference": (("model:invoke", "model/*"),),
    "viewer": (("config:read", "*"), ("usage:read", "*")),
}


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("SET LOCAL statement_timeout = '60s'")
    _principals_and_roles()
    _keys_and_sessions()
    _limits_and_budgets()
    _audit_and_config()
    _seed()


def _instant(name: str, *, nullable: bool = False, now: bool = False) -> sa.Column[object]:
    default = sa.text("now()") if now else None
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable, server_default=default)


def _id() -> sa.Column[object]:
    return sa.Column("id", sa.Uuid(), primary_key=True, nullable=False)


def _owner(table: str, column: str, target: str, *, primary_key: bool = False) -> sa.Column[object]:
    key = sa.ForeignKey(f"{target}.id", ondelete="CASCADE", name=op.f(f"fk_{table}_{column}_{target}"))
    return sa.Column(column, sa.Uuid(), key, nullable=False, primary_key=primary_key)


def _principals_and_roles() -> None:
    op.create_table(
        "principals",
        _id(),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("password_hash", sa.Text()),
        _instant("created_at", now=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_principals")),
        sa.UniqueConstraint("name", name=op.f("uq_principals_name")),
        sa.CheckConstraint("kind IN ('user', 'service_account')", name=op.f("ck_principals_kind")),
    )
    op.create_table(
        "roles",
        _id(),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("built_in", sa.Boolean(), nullable=False, server_default=sa.false()),
        _instant("created_at", now=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_roles")),
        sa.UniqueConstraint("name", name=op.f("uq_roles_name")),
    )
    op.create_table(
        "role_permissions",
        _owner("role_permissions", "role_id", "roles"),
        sa.Column("verb", sa.Text(), nullable=False),
        sa.Column("resource", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("role_id", "verb", "resource", name=op.f("pk_role_permissions")),
    )
    op.create_index(op.f("ix_role_permissions_resource"), "role_permissions", ["resource"])
    op.create_table(
        "principal_roles",
        _owner("principal_roles", "principal_id", "principals"),
        _owner("principal_roles", "role_id", "roles"),
        sa.PrimaryKeyConstraint("principal_id", "role_id", name=op.f("pk_principal_roles")),
    )
    op.create_index(op.f("ix_principal_roles_role_id"), "principal_roles", ["role_id"])


def _keys_and_sessions() -> None:
    op.create_table(
        "api_keys",
        _id(),
        _owner("api_keys", "principal_id", "principals"),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("prefix", sa.Text(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False, server_default=sa.text("'invoke'")),
        sa.Column("disabled", sa.Boolean(), nullable=False, server_default=sa.false()),
        _instant("expires_at", nullable=True),
        _instant("last_used_at", nullable=True),
        _instant("created_at", now=True),
        sa.Column("created_by", sa.Text()),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("digest", name=op.f("uq_api_keys_digest")),
        sa.CheckConstraint("scope IN ('invoke', 'admin')", name=op.f("ck_api_keys_scope")),
    )
    op.create_index(op.f("ix_api_keys_principal_id"), "api_keys", ["principal_id"])
    op.create_table(
        "sessions",
        _id(),
        _owner("sessions", "principal_id", "principals"),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False, server_default=sa.text("''")),
        _instant("created_at", now=True),
        _instant("expires_at"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sessions")),
        sa.UniqueConstraint("digest", name=op.f("uq_sessions_digest")),
    )
    op.create_index(op.f("ix_sessions_principal_id"), "sessions", ["principal_id"])
    op.create_index(op.f("ix_sessions_expires_at"), "sessions", ["expires_at"])


def _limits_and_budgets() -> None:
    op.create_table(
        "limits",
        _owner("limits", "principal_id", "principals"),
        sa.Column("requests_per_min", sa.BigInteger()),
        sa.Column("tokens_per_min", sa.BigInteger()),
        sa.Column("max_concurrent", sa.Integer()),
        _instant("updated_at", now=True),
        sa.PrimaryKeyConstraint("principal_id", name=op.f("pk_limits")),
        sa.CheckConstraint("requests_per_min > 0", name=op.f("ck_limits_requests_per_min")),
        sa.CheckConstraint("tokens_per_min > 0", name=op.f("ck_limits_tokens_per_min")),
        sa.CheckConstraint("max_concurrent > 0", name=op.f("ck_limits_max_concurrent")),
    )
    op.create_table(
        "budgets",
        _id(),
        _owner("budgets", "principal_id", "principals"),
        sa.Column("tokens_total", sa.BigInteger()),
        sa.Column("cost_total_micros", sa.BigInteger()),
        sa.Column("window", sa.Text(), nullable=False),
        sa.Column("timezone", sa.Text(), nullable=False, server_default=sa.text("'UTC'")),
        _instant("starts_at", nullable=True),
        sa.Column("tokens_used", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
        sa.Column("cost_used_micros", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
        _instant("window_start"),
        _instant("window_end"),
        _instant("updated_at", now=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_budgets")),
        sa.UniqueConstraint("principal_id", name=op.f("uq_budgets_principal_id")),
        sa.CheckConstraint("\"window\" IN ('daily', 'weekly', 'monthly')", name=op.f("ck_budgets_window")),
        sa.CheckConstraint("tokens_total > 0", name=op.f("ck_budgets_tokens_total")),
        sa.CheckConstraint("cost_total_micros > 0", name=op.f("ck_budgets_cost_total_micros")),
    )
    op.create_table(
        "budget_alerts",
        _id(),
        _owner("budget_alerts", "budget_id", "budgets"),
        _instant("window_start"),
        sa.Column("threshold_percent", sa.SmallInteger(), nullable=False),
        _instant("at", now=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_budget_alerts")),
        sa.UniqueConstraint(
            "budget_id",
            "window_start",
            "threshold_percent",
            name=op.f("uq_budget_alerts_budget_id_window_start_threshold_percent"),
        ),
    )


def _audit_and_config() -> None:
    op.create_table(
        "audit_events",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        _instant("at"),
        sa.Column("actor_id", sa.Uuid()),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("via", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("target_kind", sa.Text(), nullable=False),
        sa.Column("target_id", sa.Text()),
        sa.Column("target_name", sa.Text()),
        sa.Column("changes", postgresql.JSONB(), nullable=False, server_default=sa.text("'{}'::jsonb")),
        sa.Column("version", sa.BigInteger()),
        sa.Column("request_id", sa.Text(), nullable=False, server_default=sa.text("''")),
        sa.Column("address", sa.Text(), nullable=False, server_default=sa.text("''")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_events")),
    )
    op.create_index(op.f("ix_audit_events_version"), "audit_events", ["version"])
    op.create_index(
        op.f("ix_audit_events_target_kind_target_id"), "audit_events", ["target_kind", "target_id"]
    )
    op.create_index(op.f("ix_audit_events_actor"), "audit_events", ["actor"])
    op.create_table(
        "config",
        sa.Column("id", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("history", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_config")),
        sa.CheckConstraint("id = 1", name=op.f("ck_config_one_row")),
    )
    op.create_table(
        "settings",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", postgresql.JSONB(), nullable=False),
        _instant("updated_at", now=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_settings")),
    )


def _seed() -> None:
    roles = sa.table("roles", sa.column("id", sa.Uuid()), sa.column("name"), sa.column("built_in"))
    permissions = sa.table(
        "role_permissions", sa.column("role_id", sa.Uuid()), sa.column("verb"), sa.column("resource")
    )
    for name, held in SEEDED.items():
        role_id = uuid7()
        op.execute(sa.insert(roles).values(id=role_id, name=name, built_in=True))
        for verb, resource in held:
            op.execute(sa.insert(permissions).values(role_id=role_id, verb=verb, resource=resource))
    op.execute(
        "INSERT INTO config (id, version, history) VALUES"
        " (1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, gen_random_uuid()::text)"
    )
