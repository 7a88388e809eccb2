"""The first login and the first key: made once, when the database knows nobody yet."""

from __future__ import annotations

import datetime
import secrets

import msgspec

from fastllm_control.access import Actor
from fastllm_control.kept_secrets import KeptSecrets
from fastllm_control.ready_file import Login
from fastllm_control.repositories import actors, principals
from fastllm_control.security import Passwords
from fastllm_control.services import keys
from fastllm_control.services import principals as people
from fastllm_control.transaction import Database
from fastllm_shared.keys import digest_of

ADMIN = "admin"
ACCOUNT = "default"
_ACTOR = Actor(name="fastllm up", via="command")


class FirstLogin(msgspec.Struct, frozen=True):
    """What is not known here (any more) is `None`."""

    admin: Login | None
    api_key: str | None


async def ensure_first_login(
    database: Database, passwords: Passwords, kept: KeptSecrets, now: datetime.datetime
) -> FirstLogin:
    """A user `admin` with a random password and a service account `default` with an `invoke` key for every
    model, in a database without principals; else those of them that are kept here and still valid."""
    password = secrets.token_urlsafe(16)
    hashed = await passwords.hash(password)
    async with database.begin(_ACTOR) as tx:
        if not await principals.page(tx.session, 1):
            await people.create(tx, ADMIN, "user")
            await people.give_role(tx, ADMIN, "admin")
            await people.set_password(tx, ADMIN, hashed)
            await people.create(tx, ACCOUNT, "service_account")
            await people.give_role(tx, ACCOUNT, "inference")
            key = (await keys.create(tx, ACCOUNT, "first key", "invoke", None, now)).key
            # Before the commit: what exists must be known. The other way about is mended by the next run.
            kept.keep_admin_password(password)
            kept.keep_api_key(key)
            return FirstLogin(Login(ADMIN, password), key)
    return await _still_valid(database, passwords, kept, now)


async def _still_valid(
    database: Database, passwords: Passwords, kept: KeptSecrets, now: datetime.datetime
) -> FirstLogin:
    password, key = kept.admin_password(), kept.api_key()
    async with database.read() as session:
        admin = await principals.by_name(session, ADMIN)
        holder = await actors.by_key(session, digest_of(key), now) if key else None
    knows = password is not None and admin is not None
    right = knows and await passwords.verify(admin.password_hash if admin else None, password or "")
    return FirstLogin(Login(ADMIN, password or "") if right else None, key if holder else None)
