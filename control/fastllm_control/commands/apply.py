"""`fastllm apply`: the database becomes as a file says.

Exit code 0: it is so now, was so already, or would become so (`--dry-run`). 1: refused, and nothing was
changed. 2: the command line or a setting is wrong.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from fastllm_control import progress
from fastllm_control.commands.export import KeySettings
from fastllm_control.commands.transact import command_actor, with_database
from fastllm_control.declared.applying import Means, perform
from fastllm_control.declared.plan import Plan
from fastllm_control.declared.problems import Broken
from fastllm_control.declared.references import EnvironmentSecrets
from fastllm_control.declared.text import MAX_BYTES, read
from fastllm_control.dial import Dialer
from fastllm_control.transaction import Database
from fastllm_shared.addresses import AddressPolicy
from fastllm_shared.settings import load

REFUSED = 1


class DiallingSettings(KeySettings, frozen=True, kw_only=True):
    """Of the commands that make providers, which are dialled first."""

    deny_private_upstreams: Annotated[bool, Meta(description="refuse providers at private addresses")] = False
    own_ports: Annotated[
        str, Meta(description="ports of FastLLM on this machine, comma-separated: they are no providers")
    ] = "4000,4001"

    def problems(self) -> list[str]:
        found = super().problems()
        if not all(part.strip().isdigit() for part in self.own_ports.split(",") if part.strip()):
            found.append("FASTLLM_OWN_PORTS: port numbers, comma-separated")
        return found

    def addresses(self) -> AddressPolicy:
        """What may be dialled from here."""
        ports = frozenset(int(part) for part in self.own_ports.split(",") if part.strip())
        return AddressPolicy(deny_private=self.deny_private_upstreams, own_ports=ports)


class ApplySettings(DiallingSettings, frozen=True, kw_only=True):
    """Make the database so as a YAML file says, wholly or not at all. Prints what it does."""

    file: Annotated[str, Meta(description="YAML file, `-` for standard input; also `-f`", min_length=1)]
    dry_run: Annotated[bool, Meta(description="only say what would be done")] = False
    prune: Annotated[bool, Meta(description="delete what the file's sections do not name")] = False


def run(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Raises `ApiError`, `SettingsError`, `SchemaMismatch`, `OSError`."""
    spelt_out = ["--file" if argument == "-f" else argument for argument in arguments]
    settings = load(ApplySettings, "fastllm apply", spelt_out, environ)
    try:
        plan = apply_text(settings, _content(settings.file), environ)
    except Broken as broken:
        lines = broken.message.splitlines()
        sys.stderr.write("".join(f"fastllm apply: {settings.file}: {line}\n" for line in lines))
        return REFUSED
    sys.stdout.write(plan.printed())
    if settings.dry_run:
        sys.stderr.write("dry run: nothing was changed\n")
    elif plan.version is not None:
        sys.stderr.write(f"applied; proxies that report version {plan.version} or newer serve it\n")
    return 0


def apply_text(settings: ApplySettings, text: bytes, environ: Mapping[str, str]) -> Plan:
    """Apply what a file says. Raises `ApiError`."""
    found = read(text)
    folder = Path() if settings.file == "-" else Path(settings.file).parent
    secrets = EnvironmentSecrets(environ, folder)
    tell = progress.on(sys.stderr, "fastllm apply")
    means = Means(settings.ring(), Dialer(settings.addresses()), secrets, _now, tell)

    async def work(database: Database) -> Plan:
        return await perform(
            database, command_actor(), means, found, prune=settings.prune, dry_run=settings.dry_run
        )

    return with_database(settings, work)


def _content(file: str) -> bytes:
    """At most one byte more than is read at all."""
    if file == "-":
        return sys.stdin.buffer.read(MAX_BYTES + 1)
    with Path(file).open("rb") as opened:
        return opened.read(MAX_BYTES + 1)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
