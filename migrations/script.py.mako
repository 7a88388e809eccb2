"""${message}

Safe for the previous release's code: say here why (new tables or nullable columns only, …).
"""

from __future__ import annotations

from alembic import op

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("SET LOCAL statement_timeout = '60s'")
    ${upgrades if upgrades else "pass"}
