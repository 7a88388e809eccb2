"""`fastllm export`: the configuration as a file."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from fastllm_control.commands.transact import with_database
from fastllm_control.config import DatabaseSettings, key_problems
from fastllm_control.declared.export import export
from fastllm_control.declared.references import NoKeyring
from fastllm_control.declared.text import write
from fastllm_control.secrets import Keyring
from fastllm_control.transaction import Database
from fastllm_shared.settings import SECRET, load


class KeySettings(DatabaseSettings, frozen=True, kw_only=True):
    """Of the commands that need the encryption key only where there are credentials."""

    encryption_key: Annotated[
        str | None, Meta(description="32 bytes as hex: for credentials and headers", extra={SECRET: True})
    ] = None

    def problems(self) -> list[str]:
        found = super().problems()
        return found if self.encryption_key is None else found + key_problems(self.encryption_key)

    def ring(self) -> Keyring:
        """The keyring, or one that says that it is needed as soon as it is."""
        return NoKeyring() if self.encryption_key is None else Keyring.parse(self.encryption_key)


class ExportSettings(KeySettings, frozen=True, kw_only=True):
    """Write the configuration as YAML, without secrets: what `fastllm apply` reads."""

    output: Annotated[str | None, Meta(description="file to write; standard output unless given")] = None


def run(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Raises `ApiError`, `SettingsError`, `SchemaMismatch`, `OSError`."""
    settings = load(ExportSettings, "fastllm export", arguments, environ)

    async def work(database: Database) -> str:
        async with database.read() as session:
            return write(await export(session, settings.ring()))

    text = with_database(settings, work)
    if settings.output is None:
        sys.stdout.write(text)
        return 0
    # Whoever reads the file finds the old one or the new one, never half of one.
    path = Path(settings.output)
    beside = path.with_name(path.name + ".new")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)
    return 0
