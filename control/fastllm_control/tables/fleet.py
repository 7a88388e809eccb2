"""The fleet as it is stored: what each replica last said of itself, and what was published to it."""

from __future__ import annotations

import datetime

from sqlalchemy import BigInteger, Index, LargeBinary, Text, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Mapped, mapped_column

from fastllm_control.tables.base import Base, Instant

ZERO = text("0")


class Replica(Base):
    """One proxy worker: its last health report, and how many of its events this database holds.

    A row may exist before the first report, because usage can arrive first: then `report` is NULL.
    `report` is JSON as text, since a jsonb value cannot hold every string that JSON can. `unreachable`
    is JSON as well: backend id to the Unix time since which every report called it unreachable.
    `highest_sequence` is the greatest number that one of its events bore.
    """

    __tablename__ = "replicas"
    __table_args__ = (Index(None, "seen_at"),)

    replica: Mapped[str] = mapped_column(Text, primary_key=True)
    seen_at: Mapped[Instant]
    reported_at: Mapped[datetime.datetime | None]
    report: Mapped[str | None] = mapped_column(Text)
    unreachable: Mapped[str] = mapped_column(Text, server_default=text("'{}'"))
    events_stored: Mapped[int] = mapped_column(BigInteger, server_default=ZERO)
    highest_sequence: Mapped[int] = mapped_column(BigInteger, server_default=ZERO)


class PublishedSnapshot(Base):
    """A version that proxies could fetch: since when, which audit events made it, and what changed.

    `hash` is that of the whole content. `delta` is against the version before it, with credentials still
    encrypted; NULL where none was kept.
    """

    __tablename__ = "published_snapshots"
    __table_args__ = (Index(None, "at"),)

    version: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    at: Mapped[Instant] = mapped_column(server_default=text("clock_timestamp()"))
    audit_ids: Mapped[list[int]] = mapped_column(ARRAY(BigInteger), server_default=text("'{}'::bigint[]"))
    hash: Mapped[bytes] = mapped_column(LargeBinary)
    delta: Mapped[bytes | None] = mapped_column(LargeBinary)
