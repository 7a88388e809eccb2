"""SQL of sessions."""

from __future__ import annotations

import datetime
from uuid import UUID

from fastllm_control.access import Actor
from fastllm_control.repositories import sessions
from fastllm_control.tables.access import Session
from fastllm_control.transaction import Database
from fastllm_shared.ids import uuid7
from tests.fakes.access import COMMAND, Access

HOUR = datetime.timedelta(hours=1)


async def opened(access: Access, holder: Actor, *lives: datetime.timedelta) -> list[UUID]:
    """Sessions of a principal, with its name and 0, 1, 2 … for digests."""
    assert holder.principal_id is not None
    made: list[UUID] = []
    async with access.database.begin(COMMAND) as tx:
        for life in lives:
            digest = f"{holder.name} {len(made)}".encode()
            row = Session(
                id=uuid7(), principal_id=holder.principal_id, digest=digest, expires_at=access.now + life
            )
            tx.session.add(row)
            made.append(row.id)
    return made


async def left(access: Access) -> list[UUID]:
    return [row.id for row in await access.rows("SELECT id FROM sessions ORDER BY id")]


async def test_pages_leave_out_what_has_expired(access: Access, database: Database) -> None:
    ada = await access.principal("ada")
    made = await opened(access, ada, HOUR, -HOUR, HOUR, datetime.timedelta(), HOUR)
    valid = sorted([made[0], made[2], made[4]])  # of one millisecond: the order is chance
    async with database.read() as session:
        first = await sessions.page(session, after=None, limit=2, now=access.now)
        assert [(row.id, name) for row, name in first] == [(valid[0], "ada"), (valid[1], "ada")]
        rest = await sessions.page(session, after=valid[0], limit=5, now=access.now)
        assert [row.id for row, _ in rest] == valid[1:]


async def test_revoking_tells_whose_it_was_and_then_nothing(access: Access, database: Database) -> None:
    ada = await access.principal("ada")
    first, second = await opened(access, ada, HOUR, HOUR)
    async with database.begin(COMMAND) as tx:
        assert await sessions.revoke(tx.session, first) == ada.principal_id
        assert await sessions.revoke(tx.session, first) is None
        assert await sessions.revoke_by_digest(tx.session, b"ada 1") == (second, ada.principal_id)
        assert await sessions.revoke_by_digest(tx.session, b"ada 1") is None


async def test_revoking_all_of_one_but_one(access: Access, database: Database) -> None:
    ada, bob = await access.principal("ada"), await access.principal("bob")
    assert ada.principal_id is not None
    of_ada, of_bob = await opened(access, ada, HOUR, HOUR, HOUR), await opened(access, bob, HOUR)
    async with database.begin(COMMAND) as tx:
        await sessions.revoke_all(tx.session, ada.principal_id, but=of_ada[1])
    assert set(await left(access)) == {of_ada[1], *of_bob}
    async with database.begin(COMMAND) as tx:
        await sessions.revoke_all(tx.session, ada.principal_id)
    assert await left(access) == of_bob


async def test_forgetting_what_has_expired(access: Access, database: Database) -> None:
    made = await opened(access, await access.principal("ada"), HOUR, datetime.timedelta(), -HOUR)
    async with database.begin(COMMAND) as tx:
        await sessions.forget_expired(tx.session, access.now)
    assert await left(access) == made[:1]
