"""The declarative base: constraint names by convention, so that migrations can name what they drop."""

from __future__ import annotations

import datetime
from typing import Annotated
from uuid import UUID

from sqlalchemy import DateTime, MetaData, Text, Uuid
from sqlalchemy.orm import DeclarativeBase, mapped_column

from fastllm_shared.ids import uuid7

Id = Annotated[UUID, mapped_column(Uuid, primary_key=True, default=uuid7)]
Instant = Annotated[datetime.datetime, mapped_column(DateTime(timezone=True))]


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {str: Text, datetime.datetime: DateTime(timezone=True)}  # noqa: RUF012 (SQLAlchemy's own shape)
