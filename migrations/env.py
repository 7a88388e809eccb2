"""Alembic's environment: runs on the connection that `fastllm_control.migrate` hands over.

The caller owns the transaction and the advisory lock, so that all migrations of one run are one commit.
"""

from __future__ import annotations

from alembic import context

from fastllm_control.tables.everything import METADATA, is_modelled

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    include_name=is_modelled,
    compare_type=True,
    compare_server_default=True,
    transactional_ddl=True,
)
context.run_migrations()
