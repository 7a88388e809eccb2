"""The audit log, the version row, and settings that are kept in the database."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, CheckConstraint, Identity, Index, SmallInteger, Text, Uuid, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from fastllm_control.tables.base import Base, Instant


class AuditEvent(Base):
    """One change by one actor. `id` is a cursor. `version` is the snapshot that the change made, if any.

    The actor has no foreign key: the log outlives principals. `changes` is `{field: {before, after}}`.
    """

    __tablename__ = "audit_events"
    __table_args__ = (
        Index(None, "version"),
        Index(None, "target_kind", "target_id"),
        Index(None, "actor"),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    at: Mapped[Instant]
    actor_id: Mapped[UUID | None] = mapped_column(Uuid)
    actor: Mapped[str]
    via: Mapped[str]
    action: Mapped[str]
    target_kind: Mapped[str]
    target_id: Mapped[str | None]
    target_name: Mapped[str | None]
    changes: Mapped[dict[str, Any]] = mapped_column(JSONB, server_default=text("'{}'::jsonb"))
    version: Mapped[int | None] = mapped_column(BigInteger)
    request_id: Mapped[str] = mapped_column(server_default=text("''"))
    address: Mapped[str] = mapped_column(server_default=text("''"))


class Config(Base):
    """The one row that orders commits: the version of the newest content, and the history it belongs to."""

    __tablename__ = "config"
    __table_args__ = (CheckConstraint("id = 1", name="one_row"),)

    id: Mapped[int] = mapped_column(SmallInteger, primary_key=True, autoincrement=False)
    version: Mapped[int] = mapped_column(BigInteger)
    history: Mapped[str]


class SettingRow(Base):
    """Settings that operators change at run time, by name, as JSON (`fallback_model`, …)."""

    __tablename__ = "settings"

    name: Mapped[str] = mapped_column(Text, primary_key=True)
    value: Mapped[Any] = mapped_column(JSONB)
    updated_at: Mapped[Instant] = mapped_column(server_default=text("now()"))
