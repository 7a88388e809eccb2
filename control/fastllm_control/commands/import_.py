"""`fastllm import`: another gateway's configuration taken over."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from fastllm_control import progress
from fastllm_control.app import utc_now
from fastllm_control.commands.apply import DiallingSettings
from fastllm_control.commands.transact import command_actor, with_database
from fastllm_control.declared.applying import Means
from fastllm_control.declared.problems import Broken, Problem
from fastllm_control.declared.references import GivenSecrets
from fastllm_control.dial import Dialer
from fastllm_control.litellm import converting, importing, reading
from fastllm_control.litellm import database as litellm_database
from fastllm_control.litellm.converting import Converted
from fastllm_control.litellm.findings import Finding, Report
from fastllm_control.litellm.holders import Holders, holders
from fastllm_control.litellm.importing import Imported, Wanted
from fastllm_control.transaction import Database
from fastllm_shared.settings import SECRET, load

_SECRET: dict[str, Any] = {SECRET: True}


class ImportSettings(DiallingSettings, frozen=True, kw_only=True):
    """Take over a LiteLLM proxy's configuration; again after each edit of it, as often as you like.

    examples:
      fastllm import --litellm config.yaml --dry-run
      FASTLLM_LITELLM_DATABASE_URL_FILE=litellm-url fastllm import --litellm config.yaml
    """

    litellm: Annotated[str, Meta(description="LiteLLM's config.yaml", min_length=1)]
    dry_run: Annotated[bool, Meta(description="show what would change, and change nothing")] = False
    take_over: Annotated[
        bool, Meta(description="let the import change things of the same names that it did not make")
    ] = False
    litellm_database_url: Annotated[
        str | None, Meta(description="LiteLLM's own database: keys, limits, budgets", extra=_SECRET)
    ] = None


def run(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Raises `ApiError`, `SettingsError`, `SchemaMismatch`."""
    settings = load(ImportSettings, "fastllm import", arguments, environ)
    converted = converting.convert(reading.read(Path(settings.litellm)), environ)
    if converted.errors:
        raise Broken([Problem(error.reason, error.path) for error in converted.errors])
    now = datetime.datetime.now(datetime.UTC)

    async def work(database: Database) -> tuple[Imported, list[Finding]]:
        found, report = await _holders(settings, converted, now)
        wanted = Wanted(converted.document, converted.master_key, found)
        dialer = Dialer(settings.addresses())
        tell = progress.on(sys.stderr, "fastllm import")
        means = Means(settings.ring(), dialer, GivenSecrets(converted.secrets), utc_now, tell)
        flags = {"take_over": settings.take_over, "dry_run": settings.dry_run}
        imported = await importing.perform(database, command_actor(), means, wanted, **flags)
        return imported, report.findings

    imported, more = with_database(settings, work)
    sys.stdout.write(imported.printed())
    for warning in converted.warnings:
        sys.stdout.write(f"! {warning}\n")
    for finding in (*converted.findings, *more):
        sys.stdout.write(f"? not carried: {finding}\n")
    if settings.dry_run:
        sys.stdout.write("nothing was changed: this was a dry run\n")
    return 0


async def _holders(
    settings: ImportSettings, converted: Converted, now: datetime.datetime
) -> tuple[Holders | None, Report]:
    report = Report()
    if settings.litellm_database_url is None:
        return None, report
    tables = await litellm_database.read(settings.litellm_database_url)
    models = [model.name for model in converted.document.frontend_models or ()]
    return holders(tables, models, converted.access_groups, now, report), report
