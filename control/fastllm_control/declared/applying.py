"""Making the database so as a document says: looked at, dialled, done in one transaction, or not at all.

`perform` is the whole way. `apply` is its part within a transaction that somebody else opens: what is new
must have been dialled before (`dial_new`), since dialling may take seconds.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession

from fastllm_control.access import Actor, Verb
from fastllm_control.declared import export
from fastllm_control.declared.checking import names_after, problems_of, provider_form
from fastllm_control.declared.document import Document
from fastllm_control.declared.export import Current
from fastllm_control.declared.merging import merged
from fastllm_control.declared.performing import Performer, Wanted, located
from fastllm_control.declared.plan import SECTION_OF, Plan, Step, plan, served_by_leased
from fastllm_control.declared.problems import Broken, Problem
from fastllm_control.declared.references import Resolved, Secrets, resolve
from fastllm_control.declared.text import Read
from fastllm_control.dial import Dialer, DialResult
from fastllm_control.errors import ApiError, Forbidden, Invalid
from fastllm_control.failures import refusal_of
from fastllm_control.progress import Tell, silent
from fastllm_control.repositories import declared
from fastllm_control.secrets import Keyring
from fastllm_control.services.providers import endpoint_of, refuse_unreachable
from fastllm_control.transaction import Database, Transaction

DIALS_AT_ONCE = 50
ATTEMPTS = 3
Dials = Mapping[str, DialResult]
Done = TypeVar("Done")


@dataclass(frozen=True, slots=True)
class Means:
    """What it takes beside a database: the keyring (or `NoKeyring`), the way to dial, where references are
    looked up, and the time; `tell` hears what is being done while it takes its time."""

    ring: Keyring
    dialer: Dialer
    secrets: Secrets
    clock: Callable[[], datetime.datetime]
    tell: Tell = silent


class _DryRun(Exception):
    """Carries the plan out of a transaction that is to leave nothing."""

    def __init__(self, found: Plan) -> None:
        self.found = found


async def perform(
    database: Database,
    actor: Actor,
    means: Means,
    read: Read,
    *,
    prune: bool,
    dry_run: bool,
    begin: Callable[[], AbstractAsyncContextManager[Transaction]] | None = None,
) -> Plan:
    """Apply a document. A dry run does all of it and then leaves nothing of it. Raises `ApiError`: then
    nothing was changed. `begin` opens the transaction where the actor must be asked again who it is: dialling
    may have taken seconds."""
    dials = await dial_new(database, actor, means, read, prune=prune)

    async def once() -> Plan:
        async with database.begin(actor) if begin is None else begin() as tx:
            found = await apply(tx, means, read, prune=prune, dials=dials)
            if dry_run:
                raise _DryRun(found)
        return msgspec.structs.replace(found, version=tx.version)

    try:
        return await again_if_concurrent(once)
    except _DryRun as ended:
        return ended.found


async def again_if_concurrent(once: Callable[[], Awaitable[Done]]) -> Done:
    """What `once` returns, which does one transaction: somebody who changes the same things at the same time
    may win, and all that was done is undone then."""
    for _ in range(1, ATTEMPTS):
        try:
            return await once()
        except DBAPIError as error:
            refusal = refusal_of(error)
            if refusal is None or refusal.code != "concurrent_change":
                raise
    return await once()


async def dial_new(database: Database, actor: Actor, means: Means, read: Read, *, prune: bool) -> Dials:
    """Dial the providers that are not there yet, all at once. Raises `Broken` for a document that cannot be
    applied, and for an address that may not be dialled; `Forbidden` before anything is dialled."""
    _refuse_strangers(actor)
    async with database.read() as session:
        current, secrets = await _looked_at(session, means, read, prune=prune)
    _refuse_unauthorised(actor, _steps(current, read, secrets, prune=prune))
    slots = asyncio.Semaphore(DIALS_AT_ONCE)
    new = [entry for entry in read.document.providers or () if entry.name not in current.sealed]

    async def dialled(index: int) -> DialResult:
        entry, resolved = new[index], secrets[new[index].name]
        form = provider_form(entry, *resolved.given())
        async with slots:
            return await means.dialer.dial(endpoint_of(form))

    if new:
        means.tell(f"asking {len(new)} new providers whether they answer")
    results = await asyncio.gather(*(dialled(index) for index in range(len(new))))
    dials = {entry.name: result for entry, result in zip(new, results, strict=True)}
    _refuse_forbidden(read, dials)
    return dials


async def apply(tx: Transaction, means: Means, read: Read, *, prune: bool, dials: Dials) -> Plan:
    """Do within a transaction what the document asks for; whoever leaves the transaction by an exception has
    changed nothing. Raises `ApiError`."""
    await declared.hold(tx.session)
    current, secrets = await _looked_at(tx.session, means, read, prune=prune)
    steps = _steps(current, read, secrets, prune=prune)
    _refuse_unauthorised(tx.actor, steps)
    if steps:
        means.tell(f"doing {len(steps)} steps, all or none")
    noted = len(tx.notes)
    wanted = Wanted(read.document, read.lines, current, secrets, dials)
    await Performer(tx, means.ring, means.clock(), wanted).perform(steps)
    tx.notes[noted:] = merged(tx.notes[noted:])
    return Plan(steps, tuple(_warnings(read.document, current, secrets, dials, prune=prune)))


async def _looked_at(
    session: AsyncSession, means: Means, read: Read, *, prune: bool
) -> tuple[Current, Mapping[str, Resolved]]:
    """What is there, and the secrets of the document's providers. Raises `Broken` with everything that makes
    it impossible to apply."""
    current = await export.current(session)
    problems = problems_of(read.document, read.lines, current, means.dialer.addresses, prune=prune)
    unfit = {problem.field.partition(".")[0] for problem in problems}
    secrets = {}
    for index, entry in enumerate(read.document.providers or ()):
        if f"providers[{index}]" in unfit:
            continue
        stored = current.sealed.get(entry.name)
        try:
            secrets[entry.name] = resolve(entry, stored, means.ring, means.secrets)
        except Invalid as error:
            field = f"providers[{index}].{error.field}"
            problems.append(read.lines.problem(field, error.message))
        except ApiError as error:
            raise located(error, read.lines, f"providers[{index}]") from None
    if problems:
        raise Broken(sorted(problems, key=_place))
    return current, secrets


def _steps(current: Current, read: Read, secrets: Mapping[str, Resolved], *, prune: bool) -> tuple[Step, ...]:
    changed = {name: resolved.changed for name, resolved in secrets.items()}
    return plan(current, read.document, changed, prune=prune)


def _place(problem: Problem) -> int:
    return problem.line or 0


def _refuse_forbidden(read: Read, dials: Dials) -> None:
    problems = []
    for index, entry in enumerate(read.document.providers or ()):
        try:
            if entry.name in dials:
                refuse_unreachable(dials[entry.name], force=True)
        except ApiError as error:
            problems.append(read.lines.problem(f"providers[{index}].api_base", error.message))
    if problems:
        raise Broken(problems)


def _refuse_strangers(actor: Actor) -> None:
    """Who may change nothing learns nothing either, not even what is wrong."""
    if not actor.may("config:write") and not actor.may("access:write"):
        raise Forbidden("forbidden", "this takes the permission config:write or access:write")


def _refuse_unauthorised(actor: Actor, steps: Sequence[Step]) -> None:
    """Raise `Forbidden` unless the actor holds what every step takes."""
    verbs: set[Verb] = {
        "access:write" if step.kind in ("role", "principal") else "config:write" for step in steps
    }
    lacking = sorted(verb for verb in verbs if not actor.may(verb))
    if lacking:
        raise Forbidden("forbidden", f"what this file changes takes the permission {' and '.join(lacking)}")


def _warnings(
    document: Document, current: Current, secrets: Mapping[str, Resolved], dials: Dials, *, prune: bool
) -> list[str]:
    found = [sentence for resolved in secrets.values() for sentence in resolved.kept]
    for name, result in dials.items():
        if not result.reachable or result.needs_credential:
            found.append(
                f"the provider {name} {'' if result.reachable else 'does not answer: '}{result.reason}"
            )
    found += _unresolved(document, current, prune)
    if prune and document.provider_models is not None:
        named = {entry.name for entry in document.provider_models}
        found += [
            f"the provider model {name} stays: leased providers serve it"
            for name in sorted(served_by_leased(current) - named)
        ]
    return found


def _unresolved(document: Document, current: Current, prune: bool) -> list[str]:
    """Names that name nothing: allowed, since what they name may come later, and often a slip."""
    there = {name: names_after(name, document, current, prune) for name in SECTION_OF.values()}
    models = there["provider_models"] | served_by_leased(current)
    found = []
    for pool in document.pools or ():
        members = {member.provider_model for member in pool.members if member.provider_model is not None}
        found += [
            f"the pool {pool.name} has the member {name}, which is not there (yet)"
            for name in sorted(members - models)
        ]
    for model in document.frontend_models or ():
        targets = [*model.targets, *(target for rule in model.rules for target in rule.targets)]
        found += [
            f"the frontend model {model.name} has the target {name}, which is not there (yet)"
            for name in sorted({target.target for target in targets} - models - there["pools"])
        ]
        jumps = {rule.jump for rule in model.rules if rule.jump is not None}
        found += [
            f"the frontend model {model.name} jumps to {name}, which is not there (yet)"
            for name in sorted(jumps - there["frontend_models"])
        ]
    fallback = document.fallback_model
    if isinstance(fallback, str) and fallback not in there["frontend_models"]:
        found.append(f"the fallback is {fallback}, which is not there (yet)")
    return found
