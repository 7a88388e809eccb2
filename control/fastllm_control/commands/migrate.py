"""`fastllm migrate`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from fastllm_control import migrate, progress
from fastllm_control.config import DatabaseSettings, driver_url
from fastllm_shared.settings import load


class MigrateSettings(DatabaseSettings, frozen=True, kw_only=True):
    """Bring the database's schema up to this program. Several at once are safe: one does it.

    example: FASTLLM_DATABASE_URL=postgresql://fastllm@db/fastllm fastllm migrate
    """


def run(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Raises `SchemaTooNew`, `SettingsError`, and what the database raises."""
    settings = load(MigrateSettings, "fastllm migrate", arguments, environ)
    tell = progress.on(sys.stderr, "fastllm migrate")
    tell(f"bringing the schema to revision {migrate.newest_revision()}, after whoever else does so now")
    migrate.upgrade(driver_url(settings.database_url))
    sys.stdout.write(f"the database's schema is at revision {migrate.newest_revision()}\n")
    return 0
