"""`fastllm create-key`: an API key from the command line."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated

from msgspec import Meta

from fastllm_control.commands.transact import transact
from fastllm_control.config import DatabaseSettings
from fastllm_control.naming import Name
from fastllm_control.services import keys
from fastllm_control.transaction import Transaction
from fastllm_shared.settings import load
from fastllm_shared.snapshot import Scope


class CreateKeySettings(DatabaseSettings, frozen=True, kw_only=True):
    """Create an API key of a principal and print it, the only time that it is shown.

    example: fastllm create-key --principal team-a --key-name ci --expires-in-days 30
    """

    principal: Annotated[Name, Meta(description="name or id of the holder")]
    key_name: Annotated[Name, Meta(description="what the key is called in lists")] = "command line"
    scope: Annotated[Scope, Meta(description="`invoke` (models) or `admin` (and the admin API)")] = "invoke"
    expires_in_days: Annotated[int, Meta(description="0 is never", ge=0, le=3650)] = 90


def run(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Raises `ApiError`, `SettingsError`, `SchemaMismatch`."""
    settings = load(CreateKeySettings, "fastllm create-key", arguments, environ)
    now = datetime.datetime.now(datetime.UTC)
    days = settings.expires_in_days
    expires_at = now + datetime.timedelta(days=days) if days else None

    async def work(tx: Transaction) -> keys.NewKey:
        return await keys.create(tx, settings.principal, settings.key_name, settings.scope, expires_at, now)

    made = transact(settings, work)
    sys.stdout.write(f"{made.key}\n")
    until = "never expires" if expires_at is None else f"expires {expires_at:%Y-%m-%d}"
    sys.stderr.write(
        f"key {made.prefix}… of {made.principal}, scope {made.scope}, {until}; not shown again\n"
    )
    return 0
