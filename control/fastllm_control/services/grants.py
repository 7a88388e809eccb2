"""Three rules that everything about access obeys.

Nobody hands out more than they hold themselves; nobody takes it from those who hold more; and the last
principal who can administer everything, and can prove who it is, does not lose that.
"""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from fastllm_control.access import Actor, Permission
from fastllm_control.errors import Conflict, Forbidden
from fastllm_control.repositories import principals
from fastllm_control.transaction import Transaction

LASTING = datetime.timedelta(days=1)


def covers(held: Iterable[Permission], wanted: Permission) -> bool:
    """Whether someone who holds `held` holds `wanted` too."""
    wildcard = Permission(wanted.verb, "model/*" if wanted.verb == "model:invoke" else "*")
    return any(permission in (wanted, wildcard) for permission in held)


def refuse_more_than_held(actor: Actor, wanted: Iterable[Permission], doing: str) -> None:
    """Raise `Forbidden`, naming what is missing, unless the actor holds all of `wanted`."""
    if actor.via in ("command", "job"):
        return
    beyond = sorted(
        f"{permission.verb} on {permission.resource}"
        for permission in wanted
        if not covers(actor.permissions, permission)
    )
    if beyond:
        raise Forbidden(
            "more_than_held", f"{doing} takes permissions that you do not hold: {', '.join(beyond)}"
        )


def refuse_against_stronger(actor: Actor, affected: Iterable[Permission], doing: str) -> None:
    """Raise `Forbidden` where a change would be made to somebody, or to a role, with more to say than the
    actor has. `model:invoke` says nothing here: whoever looks after teams need not use their models."""
    administrative = [permission for permission in affected if permission.verb != "model:invoke"]
    refuse_more_than_held(actor, administrative, doing)


@asynccontextmanager
async def administration_kept(tx: Transaction, now: datetime.datetime) -> AsyncIterator[None]:
    """Around a change that may take somebody's way of administering away. Raises `Conflict` at its end."""
    await principals.lock_administering(tx.session)
    before = await _ways(tx, now)
    yield
    await tx.session.flush()
    if before - await _ways(tx, now):
        raise Conflict(
            "last_administrator",
            "after this nobody could administer FastLLM any more: give another principal the role `admin`"
            " and a password, or an admin-scoped key, first",
        )


async def _ways(tx: Transaction, now: datetime.datetime) -> set[tuple[str, datetime.datetime]]:
    """Now, and a day on: a key in the last minute of its grace does not stand in for one that stays."""
    moments = (now, now + LASTING)
    return {
        (way, moment)
        for moment in moments
        for way in await principals.ways_of_administering(tx.session, moment)
    }
