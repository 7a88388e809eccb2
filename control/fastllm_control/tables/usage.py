"""Usage as it is stored: one row a request, hourly sums, and what was turned away before anyone was known.

Names stand beside ids and nothing here is a foreign key: history outlives the rows that it tells of.
Unknown is NULL, never 0.
"""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import BigInteger, Index, Integer, SmallInteger, Text, Uuid, text
from sqlalchemy.orm import Mapped, mapped_column

from fastllm_control.tables.base import Base, Instant

ZERO = text("0")
NONE = text("''")


class UsageEvent(Base):
    """One request. `id` was minted by the proxy; its first 48 bits are the milliseconds that partition the
    table, so that uniqueness and time agree. `at` is within a day of them. Durations are milliseconds.

    The index on `at` is a BRIN: rows arrive nearly in the order of time, and it costs an insert nothing.
    """

    __tablename__ = "usage_events"
    __table_args__ = (
        Index(None, "at", postgresql_using="brin", postgresql_with={"autosummarize": True}),
        Index(None, "principal_id", "id"),
        Index(None, "model", "id"),
        {"postgresql_partition_by": "RANGE (id)"},
    )

    id: Mapped[UUID] = mapped_column(Uuid, primary_key=True)
    at: Mapped[Instant]
    replica: Mapped[str]
    request_id: Mapped[str]
    sequence: Mapped[int] = mapped_column(BigInteger)
    endpoint: Mapped[str]
    status: Mapped[int] = mapped_column(SmallInteger)
    refusal: Mapped[str | None]
    principal_id: Mapped[UUID | None] = mapped_column(Uuid)
    principal: Mapped[str | None]
    key_id: Mapped[UUID | None] = mapped_column(Uuid)
    key_prefix: Mapped[str | None]
    model: Mapped[str | None]
    provider_model: Mapped[str | None]
    provider_id: Mapped[UUID | None] = mapped_column(Uuid)
    provider: Mapped[str | None]
    backend_id: Mapped[UUID | None] = mapped_column(Uuid)
    rule: Mapped[int | None] = mapped_column(Integer)
    tag: Mapped[str | None]
    prompt_tokens: Mapped[int | None] = mapped_column(BigInteger)
    completion_tokens: Mapped[int | None] = mapped_column(BigInteger)
    cached_tokens: Mapped[int | None] = mapped_column(BigInteger)
    reasoning_tokens: Mapped[int | None] = mapped_column(BigInteger)
    usage_reported: Mapped[bool]
    cost_micros: Mapped[int | None] = mapped_column(BigInteger)
    cost_source: Mapped[str | None]
    stream: Mapped[bool]
    attempts: Mapped[int] = mapped_column(Integer)
    ttft_ms: Mapped[float | None]
    duration_ms: Mapped[float]


class UsageRollup(Base):
    """What is left of raw rows once they are older than the retention: sums by hour and names.

    `names` is the MD5 of all the names together: it keeps the key short whatever the names' lengths.
    Sums of tokens and cost are over what was known, NULL when nothing was.
    """

    __tablename__ = "usage_rollup_hourly"

    hour: Mapped[Instant] = mapped_column(primary_key=True)
    names: Mapped[UUID] = mapped_column(Uuid, primary_key=True)
    principal: Mapped[str | None]
    key_prefix: Mapped[str | None]
    model: Mapped[str | None]
    provider_model: Mapped[str | None]
    provider: Mapped[str | None]
    tag: Mapped[str | None]
    refusal: Mapped[str | None]
    requests: Mapped[int] = mapped_column(BigInteger, server_default=ZERO)
    errors: Mapped[int] = mapped_column(BigInteger, server_default=ZERO)
    cancelled: Mapped[int] = mapped_column(BigInteger, server_default=ZERO)
    consuming: Mapped[int] = mapped_column(BigInteger, server_default=ZERO)
    unpriced_requests: Mapped[int] = mapped_column(BigInteger, server_default=ZERO)
    unknown_usage_requests: Mapped[int] = mapped_column(BigInteger, server_default=ZERO)
    prompt_tokens: Mapped[int | None] = mapped_column(BigInteger)
    completion_tokens: Mapped[int | None] = mapped_column(BigInteger)
    cached_tokens: Mapped[int | None] = mapped_column(BigInteger)
    reasoning_tokens: Mapped[int | None] = mapped_column(BigInteger)
    cost_micros: Mapped[int | None] = mapped_column(BigInteger)


class GatewayRejection(Base):
    """Requests that were turned away without a usage row, counted by minute, replica and reason.

    `key_prefix` is empty where nobody was authenticated.
    """

    __tablename__ = "gateway_rejections"

    minute: Mapped[Instant] = mapped_column(primary_key=True)
    replica: Mapped[str] = mapped_column(Text, primary_key=True)
    reason: Mapped[str] = mapped_column(Text, primary_key=True)
    key_prefix: Mapped[str] = mapped_column(Text, primary_key=True, server_default=NONE)
    count: Mapped[int] = mapped_column(BigInteger)
