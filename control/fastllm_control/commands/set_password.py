"""`fastllm set-password`: the way in for the first administrator, and back in for one who forgot."""

from __future__ import annotations

import datetime
import getpass
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated

from msgspec import Meta

from fastllm_control.commands.transact import transact
from fastllm_control.config import DatabaseSettings
from fastllm_control.errors import Invalid
from fastllm_control.naming import Name
from fastllm_control.repositories import principals as repository
from fastllm_control.security import Passwords
from fastllm_control.services import principals
from fastllm_control.transaction import Transaction
from fastllm_shared.settings import load

SHORTEST = 8


class SetPasswordSettings(DatabaseSettings, frozen=True, kw_only=True):
    """Set a person's password: asked for on a terminal, else the first line of standard input.

    example: fastllm set-password alice < password-file
    """

    name: Annotated[Name, Meta(description="whose password")] = "admin"


def run(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Sets the password of `--name`. Where nobody can administer FastLLM, an absent name is created with
    the role `admin`. Raises `ApiError`, `SettingsError`, `SchemaMismatch`."""
    named = [] if not arguments or arguments[0].startswith("-") else ["--name", arguments[0]]
    rest = arguments[1:] if named else arguments
    settings = load(SetPasswordSettings, "fastllm set-password [NAME]", [*named, *rest], environ)
    password = _read_password()
    if len(password) < SHORTEST:
        raise Invalid("invalid_value", f"a password has at least {SHORTEST} characters", "password")

    async def work(tx: Transaction) -> bool:
        return await set_password(tx, settings.name, await Passwords().hash(password))

    created = transact(settings, work)
    made = " (created, with the role admin)" if created else ""
    sys.stdout.write(f"the password of {settings.name} is set{made}\n")
    return 0


async def set_password(tx: Transaction, name: str, password_hash: str) -> bool:
    """Returns whether the principal was created for it."""
    created = await repository.find(tx.session, name) is None
    if created:
        await repository.lock_administering(tx.session)
        now = datetime.datetime.now(datetime.UTC)
        if await repository.count_administering(tx.session, now):
            raise Invalid("principal_not_found", f"there is no principal {name!r}", "name")
        await principals.create(tx, name, "user")
        await principals.give_role(tx, name, "admin")
    await principals.set_password(tx, name, password_hash)
    return created


def _read_password() -> str:
    if sys.stdin.isatty():
        first = getpass.getpass("new password: ")
        if first != getpass.getpass("once more: "):
            raise Invalid(
                "invalid_value", "the two passwords are not the same: nothing was changed", "password"
            )
        return first
    return sys.stdin.readline().rstrip("\r\n")
