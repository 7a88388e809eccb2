"""An import, applied: looked at, dialled, and done in one transaction, or not at all.

What a file and a database of LiteLLM come to is applied like a configuration file; then the keys are taken
over, and what earlier imports made and this one no longer has is removed. Things that no import made are
neither changed nor removed.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from fastllm_control.access import Actor
from fastllm_control.declared import export
from fastllm_control.declared.applying import Dials, Means, again_if_concurrent, apply, dial_new
from fastllm_control.declared.document import DeclaredPrincipal, Document
from fastllm_control.declared.plan import Kind, Plan, Step
from fastllm_control.declared.problems import Lines
from fastllm_control.declared.text import Read
from fastllm_control.errors import Conflict, NotFound
from fastllm_control.litellm import ownership
from fastllm_control.litellm.holders import Holders, ImportedKey
from fastllm_control.litellm.ownership import Owned
from fastllm_control.repositories import declared
from fastllm_control.repositories import keys as keys_repository
from fastllm_control.services import (
    frontend_models,
    keys,
    pools,
    principals,
    provider_models,
    providers,
    roles,
)
from fastllm_control.transaction import Database, Transaction
from fastllm_shared.keys import SHOWN_CHARACTERS, digest_of

MASTER = "litellm/master"
"""The principal whose key the master key is."""


class Wanted(Struct, frozen=True):
    """`holders` absent: LiteLLM's database was not given, and what came out of it before stays."""

    document: Document
    master_key: str | None = None
    holders: Holders | None = None

    def __repr__(self) -> str:
        return "Wanted()"  # without what is secret of it

    def whole(self) -> Document:
        """The document with everybody who is to hold a key."""
        found = self.holders or Holders()
        masters = [DeclaredPrincipal(name=MASTER, roles=("admin",))] if self.master_key else []
        return msgspec.structs.replace(
            self.document, roles=found.roles, principals=(*masters, *found.principals)
        )


class Imported(Struct, frozen=True):
    """What was done, or would be: `keys` has a line for each key."""

    plan: Plan
    keys: tuple[str, ...]

    def printed(self) -> str:
        """One line for each step and warning."""
        if self.keys and not self.plan.steps:
            warnings = "".join(f"! {warning}\n" for warning in self.plan.warnings)
            return "".join(f"{line}\n" for line in self.keys) + warnings
        return self.plan.printed() + "".join(f"{line}\n" for line in self.keys)


class _DryRun(Exception):
    """Carries what was found out of a transaction that is to leave nothing."""

    def __init__(self, found: Imported) -> None:
        self.found = found


async def perform(
    database: Database, actor: Actor, means: Means, wanted: Wanted, *, take_over: bool, dry_run: bool
) -> Imported:
    """Import. A dry run does all of it and then leaves nothing of it. Raises `ApiError`: then nothing was
    changed."""
    read = Read(wanted.whole(), Lines())
    dials = await dial_new(database, actor, means, read, prune=False)

    async def once() -> Imported:
        async with database.begin(actor) as tx:
            found = await _import(tx, means, wanted, read, dials, take_over=take_over)
            if dry_run:
                raise _DryRun(found)
        return msgspec.structs.replace(found, plan=msgspec.structs.replace(found.plan, version=tx.version))

    try:
        return await again_if_concurrent(once)
    except _DryRun as ended:
        return ended.found


async def _import(
    tx: Transaction, means: Means, wanted: Wanted, read: Read, dials: Dials, *, take_over: bool
) -> Imported:
    await declared.hold(tx.session)
    owned = await ownership.read(tx.session)
    if not take_over:
        ownership.refuse_others(owned, read.document, (await export.current(tx.session)).document)
    plan = await apply(tx, means, read, prune=False, dials=dials)
    now = means.clock()
    lines, digests, master = await _keys(tx, wanted, owned, now)
    vanished = [entry for entry in owned.vanished(read.document) if _may_go(entry, wanted)]
    removed, warnings = await _remove(tx, vanished, now)
    after = Owned(owned.after(read.document, vanished), digests, master)
    if after != owned:
        await ownership.write(tx.session, after)
    steps = (*plan.steps, *removed)
    return Imported(Plan(steps, (*plan.warnings, *warnings)), tuple(lines))


def _may_go(entry: tuple[Kind, str], wanted: Wanted) -> bool:
    """Without LiteLLM's database nothing is known of those who came out of it."""
    kind, name = entry
    return kind not in ("principal", "role") or wanted.holders is not None or name == MASTER


async def _keys(
    tx: Transaction, wanted: Wanted, owned: Owned, now: datetime.datetime
) -> tuple[list[str], tuple[str, ...], str | None]:
    """Adopt those that are there and revoke those that are gone; what was done, and what is owned then."""
    lines: list[str] = []
    master = None
    if wanted.master_key is not None:
        key = wanted.master_key
        # Of a short key the usual prefix would be all of it.
        shown = key[: min(SHOWN_CHARACTERS, len(key) // 3)]
        given = keys.GivenKey(digest_of(key), "LiteLLM master key", shown, "admin")
        master = given.digest.hex()
        if await keys.adopt(tx, MASTER, given, now, movable=False) is not None:
            lines.append(f"+ key LiteLLM master key of {MASTER}, scope admin")
    digests = owned.keys
    if wanted.holders is not None:
        for imported in wanted.holders.keys:
            movable = imported.digest in owned.keys
            if await keys.adopt(tx, imported.holder, _given(imported), now, movable=movable) is not None:
                lines.append(f"{'~' if movable else '+'} key {imported.name} of {imported.holder}")
        digests = tuple(sorted(imported.digest for imported in wanted.holders.keys))
    gone = [digest for digest in owned.keys if digest not in digests]
    if owned.master is not None and owned.master != master:
        gone.append(owned.master)
    for digest in gone:
        row = await keys_repository.by_digest(tx.session, bytes.fromhex(digest))
        if row is not None and not row.disabled:
            await keys.revoke(tx, row.id, now)
            lines.append(f"- key {row.name}")
    return lines, digests, master


def _given(imported: ImportedKey) -> keys.GivenKey:
    digest = bytes.fromhex(imported.digest)
    return keys.GivenKey(digest, imported.name, imported.prefix, "invoke", imported.expires_at)


async def _remove(
    tx: Transaction, vanished: Sequence[tuple[Kind, str]], now: datetime.datetime
) -> tuple[list[Step], list[str]]:
    steps, warnings = [], []
    for kind, name in vanished:
        try:
            await _delete(tx, kind, name, now)
        except NotFound:
            continue
        except Conflict as error:
            if error.code != "provider_in_use":
                raise
            warnings.append(f"the provider {name} stays: models that no import made are served by it")
            continue
        steps.append(Step("delete", kind, name))
    return steps, warnings


async def _delete(tx: Transaction, kind: Kind, name: str, now: datetime.datetime) -> None:
    if kind == "principal":
        await principals.delete(tx, name, now)
    elif kind == "role":
        await roles.delete(tx, name, now)
    elif kind == "frontend_model":
        await frontend_models.delete(tx, name)
    elif kind == "pool":
        await pools.delete(tx, name)
    elif kind == "provider_model":
        await provider_models.delete(tx, name)
    else:
        await providers.delete(tx, name, force=False)
