from __future__ import annotations

import pytest

from fastllm_control.errors import Invalid
from fastllm_control.services import fallback, frontend_models
from fastllm_control.transaction import Change, Database
from tests.fakes.configuration import ACTOR, Stock


async def test_named_by_id_or_name_and_cleared(database: Database, stock: Stock) -> None:
    identity = await stock.frontend("spare")
    await stock.frontend("other")
    for reference, name in ((str(identity), "spare"), ("other", "other"), (None, None)):
        async with database.begin(ACTOR) as tx:
            before = await fallback.current(tx.session)
            assert await fallback.set_fallback(tx, reference) == name
            assert await fallback.current(tx.session) == name
            (note,) = tx.notes
        assert (note.action, note.changes) == ("fallback_model.set", {"fallback_model": Change(before, name)})
        assert tx.version is not None
        async with database.begin(ACTOR) as tx:
            await fallback.set_fallback(tx, reference)
        assert (tx.version, tx.notes) == (None, [])


async def test_it_must_exist_when_it_is_named_and_may_go_later(database: Database, stock: Stock) -> None:
    await stock.frontend("spare")
    async with database.begin(ACTOR) as tx:
        with pytest.raises(Invalid) as refused:
            await fallback.set_fallback(tx, "nothing")
        assert refused.value.field == "frontend_model"
        await fallback.set_fallback(tx, "spare")
        await frontend_models.delete(tx, "spare")
        assert await fallback.current(tx.session) == "spare"
