"""Who may do what: principals, roles and grants, keys, sessions, and what limits a principal."""

from __future__ import annotations

import datetime
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    SmallInteger,
    UniqueConstraint,
    false,
    func,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from fastllm_control.tables.base import Base, Id, Instant

NOW = func.now()


class Principal(Base):
    """A person or a service account. `password_hash` is Argon2id, of people only."""

    __tablename__ = "principals"
    __table_args__ = (CheckConstraint("kind IN ('user', 'service_account')", name="kind"),)

    id: Mapped[Id]
    name: Mapped[str] = mapped_column(unique=True)
    kind: Mapped[str]
    password_hash: Mapped[str | None]
    created_at: Mapped[Instant] = mapped_column(server_default=NOW)


class Role(Base):
    """`built_in` roles are those that the migrations seeded: they can be neither deleted nor changed."""

    __tablename__ = "roles"

    id: Mapped[Id]
    name: Mapped[str] = mapped_column(unique=True)
    built_in: Mapped[bool] = mapped_column(server_default=false())
    created_at: Mapped[Instant] = mapped_column(server_default=NOW)


class RolePermission(Base):
    """A verb on a resource. Grants on frontend models are held by name: `model/<name>` or `model/*`."""

    __tablename__ = "role_permissions"
    __table_args__ = (Index(None, "resource"),)

    role_id: Mapped[UUID] = mapped_column(ForeignKey("roles.id", ondelete="CASCADE"), primary_key=True)
    verb: Mapped[str] = mapped_column(primary_key=True)
    resource: Mapped[str] = mapped_column(primary_key=True)


class PrincipalRole(Base):
    __tablename__ = "principal_roles"
    __table_args__ = (Index(None, "role_id"),)

    principal_id: Mapped[UUID] = mapped_column(
        ForeignKey("principals.id", ondelete="CASCADE"), primary_key=True
    )
    role_id: Mapped[UUID] = mapped_column(ForeignKey("roles.id", ondelete="CASCADE"), primary_key=True)


class ApiKey(Base):
    """`digest` is SHA-256 of the key, which itself is nowhere. A revoked key keeps its row, `disabled`."""

    __tablename__ = "api_keys"
    __table_args__ = (
        CheckConstraint("scope IN ('invoke', 'admin')", name="scope"),
        Index(None, "principal_id"),
    )

    id: Mapped[Id]
    principal_id: Mapped[UUID] = mapped_column(ForeignKey("principals.id", ondelete="CASCADE"))
    name: Mapped[str]
    digest: Mapped[bytes] = mapped_column(LargeBinary, unique=True)
    prefix: Mapped[str]
    scope: Mapped[str] = mapped_column(server_default=text("'invoke'"))
    disabled: Mapped[bool] = mapped_column(server_default=false())
    expires_at: Mapped[datetime.datetime | None]
    last_used_at: Mapped[datetime.datetime | None]
    created_at: Mapped[Instant] = mapped_column(server_default=NOW)
    created_by: Mapped[str | None]


class Session(Base):
    """A login. The cookie's value is stored as its SHA-256 only."""

    __tablename__ = "sessions"
    __table_args__ = (Index(None, "principal_id"), Index(None, "expires_at"))

    id: Mapped[Id]
    principal_id: Mapped[UUID] = mapped_column(ForeignKey("principals.id", ondelete="CASCADE"))
    digest: Mapped[bytes] = mapped_column(LargeBinary, unique=True)
    address: Mapped[str] = mapped_column(server_default=text("''"))
    created_at: Mapped[Instant] = mapped_column(server_default=NOW)
    expires_at: Mapped[Instant]


class Limit(Base):
    """Per principal; NULL is unlimited."""

    __tablename__ = "limits"
    __table_args__ = (
        CheckConstraint("requests_per_min > 0", name="requests_per_min"),
        CheckConstraint("tokens_per_min > 0", name="tokens_per_min"),
        CheckConstraint("max_concurrent > 0", name="max_concurrent"),
    )

    principal_id: Mapped[UUID] = mapped_column(
        ForeignKey("principals.id", ondelete="CASCADE"), primary_key=True
    )
    requests_per_min: Mapped[int | None] = mapped_column(BigInteger)
    tokens_per_min: Mapped[int | None] = mapped_column(BigInteger)
    max_concurrent: Mapped[int | None] = mapped_column(Integer)
    updated_at: Mapped[Instant] = mapped_column(server_default=NOW)


class Budget(Base):
    """Caps per principal and window, and what of them is used. `cost` in micro-units; NULL is no cap."""

    __tablename__ = "budgets"
    __table_args__ = (
        CheckConstraint("\"window\" IN ('daily', 'weekly', 'monthly')", name="window"),
        CheckConstraint("tokens_total > 0", name="tokens_total"),
        CheckConstraint("cost_total_micros > 0", name="cost_total_micros"),
    )

    id: Mapped[Id]
    principal_id: Mapped[UUID] = mapped_column(ForeignKey("principals.id", ondelete="CASCADE"), unique=True)
    tokens_total: Mapped[int | None] = mapped_column(BigInteger)
    cost_total_micros: Mapped[int | None] = mapped_column(BigInteger)
    window: Mapped[str]
    timezone: Mapped[str] = mapped_column(server_default=text("'UTC'"))
    starts_at: Mapped[datetime.datetime | None]
    tokens_used: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    cost_used_micros: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    window_start: Mapped[Instant]
    window_end: Mapped[Instant]
    updated_at: Mapped[Instant] = mapped_column(server_default=NOW)


class BudgetAlert(Base):
    """A threshold that was announced: once a window, whichever control plane was first."""

    __tablename__ = "budget_alerts"
    __table_args__ = (UniqueConstraint("budget_id", "window_start", "threshold_percent"),)

    id: Mapped[Id]
    budget_id: Mapped[UUID] = mapped_column(ForeignKey("budgets.id", ondelete="CASCADE"))
    window_start: Mapped[Instant]
    threshold_percent: Mapped[int] = mapped_column(SmallInteger)
    at: Mapped[Instant] = mapped_column(server_default=NOW)
