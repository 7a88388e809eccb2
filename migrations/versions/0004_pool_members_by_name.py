"""Pool members name provider models, as targets do: a membership outlives its model and re-attaches.

Safe for the previous release's code: the column that it reads stays; to it a member by name is one of no
backends, and it has no way of making members of its own.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("SET LOCAL statement_timeout = '60s'")
    op.add_column("pool_members", sa.Column("provider_model", sa.Text()))
    op.create_index("ix_pool_members_provider_model", "pool_members", ["provider_model"])
    op.drop_constraint(op.f("ck_pool_members_one_reference"), "pool_members", type_="check")
    op.execute(
        "UPDATE pool_members m SET provider_model = p.name, provider_model_id = NULL"
        " FROM provider_models p WHERE p.id = m.provider_model_id"
    )
    op.create_check_constraint(
        op.f("ck_pool_members_one_reference"), "pool_members", "num_nonnulls(provider_model, backend_id) = 1"
    )
