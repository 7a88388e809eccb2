"""A target may have the weight 0: it is there for failover alone.

Safe for the previous release's code: it writes no such weight, and where it reads one it already treats the
target as one for failover.
"""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("SET LOCAL statement_timeout = '60s'")
    for table in ("default_targets", "rule_targets"):
        name = op.f(f"ck_{table}_weight")
        op.drop_constraint(name, table, type_="check")
        op.create_check_constraint(name, table, "weight >= 0")
