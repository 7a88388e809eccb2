"""Usage events, their rollups and rejections; replicas and published snapshots.

Safe for the previous release's code: it only creates tables.
"""

from __future__ import annotations

import datetime

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"

WEEK = datetime.timedelta(days=7)
FIRST_MONDAY = datetime.datetime(1970, 1, 5, tzinfo=datetime.UTC)
ZERO = sa.text("0")


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("SET LOCAL statement_timeout = '60s'")
    _usage_events()
    _partitions(datetime.datetime.now(datetime.UTC))
    _rollups()
    _rejections()
    _fleet()


def _text(name: str, *, nullable: bool = False) -> sa.Column[object]:
    return sa.Column(name, sa.Text(), nullable=nullable)


def _count(name: str, *, nullable: bool = False) -> sa.Column[object]:
    return sa.Column(name, sa.BigInteger(), nullable=nullable, server_default=None if nullable else ZERO)


def _instant(name: str, *, nullable: bool = False) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def _usage_events() -> None:
    op.create_table(
        "usage_events",
        sa.Column("id", sa.Uuid(), nullable=False),
        _instant("at"),
        _text("replica"),
        _text("request_id"),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        _text("endpoint"),
        sa.Column("status", sa.SmallInteger(), nullable=False),
        _text("refusal", nullable=True),
        sa.Column("principal_id", sa.Uuid()),
        _text("principal", nullable=True),
        sa.Column("key_id", sa.Uuid()),
        _text("key_prefix", nullable=True),
        _text("model", nullable=True),
        _text("provider_model", nullable=True),
        sa.Column("provider_id", sa.Uuid()),
        _text("provider", nullable=True),
        sa.Column("backend_id", sa.Uuid()),
        sa.Column("rule", sa.Integer()),
        _text("tag", nullable=True),
        _count("prompt_tokens", nullable=True),
        _count("completion_tokens", nullable=True),
        _count("cached_tokens", nullable=True),
        _count("reasoning_tokens", nullable=True),
        sa.Column("usage_reported", sa.Boolean(), nullable=False),
        _count("cost_micros", nullable=True),
        _text("cost_source", nullable=True),
        sa.Column("stream", sa.Boolean(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("ttft_ms", sa.Float()),
        sa.Column("duration_ms", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_usage_events")),
        postgresql_partition_by="RANGE (id)",
    )
    op.create_index(
        op.f("ix_usage_events_at"),
        "usage_events",
        ["at"],
        postgresql_using="brin",
        postgresql_with={"autosummarize": True},
    )
    op.create_index(op.f("ix_usage_events_principal_id_id"), "usage_events", ["principal_id", "id"])
    op.create_index(op.f("ix_usage_events_model_id"), "usage_events", ["model", "id"])


def _partitions(now: datetime.datetime) -> None:
    """This week and the next, so that the first events find a place; `partitions` makes all later ones."""
    op.execute("CREATE TABLE usage_events_default PARTITION OF usage_events DEFAULT")
    monday = FIRST_MONDAY + (now - FIRST_MONDAY) // WEEK * WEEK
    for start in (monday, monday + WEEK):
        low, high = _lowest_id(start), _lowest_id(start + WEEK)
        op.execute(
            f"CREATE TABLE usage_events_{start:%Y%m%d} PARTITION OF usage_events"
            f" FOR VALUES FROM ('{low}') TO ('{high}')"
        )


def _lowest_id(at: datetime.datetime) -> str:
    digits = f"{int(at.timestamp()) * 1000:012x}"
    return f"{digits[:8]}-{digits[8:]}-0000-0000-000000000000"


def _rollups() -> None:
    op.create_table(
        "usage_rollup_hourly",
        _instant("hour"),
        sa.Column("names", sa.Uuid(), nullable=False),
        _text("principal", nullable=True),
        _text("key_prefix", nullable=True),
        _text("model", nullable=True),
        _text("provider_model", nullable=True),
        _text("provider", nullable=True),
        _text("tag", nullable=True),
        _text("refusal", nullable=True),
        _count("requests"),
        _count("errors"),
        _count("cancelled"),
        _count("consuming"),
        _count("unpriced_requests"),
        _count("unknown_usage_requests"),
        _count("prompt_tokens", nullable=True),
        _count("completion_tokens", nullable=True),
        _count("cached_tokens", nullable=True),
        _count("reasoning_tokens", nullable=True),
        _count("cost_micros", nullable=True),
        sa.PrimaryKeyConstraint("hour", "names", name=op.f("pk_usage_rollup_hourly")),
    )


def _rejections() -> None:
    op.create_table(
        "gateway_rejections",
        _instant("minute"),
        _text("replica"),
        _text("reason"),
        sa.Column("key_prefix", sa.Text(), nullable=False, server_default=sa.text("''")),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(
            "minute", "replica", "reason", "key_prefix", name=op.f("pk_gateway_rejections")
        ),
    )


def _fleet() -> None:
    op.create_table(
        "replicas",
        _text("replica"),
        _instant("seen_at"),
        _instant("reported_at", nullable=True),
        _text("report", nullable=True),
        sa.Column("unreachable", sa.Text(), nullable=False, server_default=sa.text("'{}'")),
        _count("events_stored"),
        _count("highest_sequence"),
        sa.PrimaryKeyConstraint("replica", name=op.f("pk_replicas")),
    )
    op.create_index(op.f("ix_replicas_seen_at"), "replicas", ["seen_at"])
    op.create_table(
        "published_snapshots",
        sa.Column("version", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column(
            "at", sa.DateTime(timezone=True), nullable=False, server_default=sa.text("clock_timestamp()")
        ),
        sa.Column(
            "audit_ids",
            postgresql.ARRAY(sa.BigInteger()),
            nullable=False,
            server_default=sa.text("'{}'::bigint[]"),
        ),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("delta", sa.LargeBinary()),
        sa.PrimaryKeyConstraint("version", name=op.f("pk_published_snapshots")),
    )
    op.create_index(op.f("ix_published_snapshots_at"), "published_snapshots", ["at"])
