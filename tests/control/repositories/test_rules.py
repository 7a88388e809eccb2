from __future__ import annotations

from fastllm_control.forms import NewRule, Target
from fastllm_control.repositories import rules
from fastllm_control.services import rules as service
from fastllm_control.transaction import Database
from fastllm_shared.ids import uuid7
from tests.fakes.configuration import ACTOR, Stock


async def test_rules_and_targets_in_their_order(database: Database, stock: Stock) -> None:
    one, two, three = [await stock.frontend(name) for name in ("one", "two", "three")]
    async with database.begin(ACTOR) as tx:
        for names in (("c", "a"), ("b",)):
            await service.create(
                tx, "one", NewRule(position=0, targets=tuple(Target(name, 2) for name in names))
            )
        await service.create(tx, "two", NewRule(action="jump", jump="one"))
        found = await rules.of_models(tx.session, [one, two, three])
        assert [row.position for row in found[one]] == [0, 1]
        assert three not in found
        targets = await rules.targets_of(tx.session, [row.id for row in found[one]])
        listed = [targets[row.id] for row in found[one]]
        assert listed == [[Target("b", 2)], [Target("c", 2), Target("a", 2)]]
        assert await rules.counts(tx.session, [one, two, three]) == {one: 2, two: 1}
        assert await rules.jumps(tx.session) == [("two", "one")]
        page = await rules.page(tx.session, one, 1, None)
        assert [row.position for row in page] == [0]
        assert [row.position for row in await rules.page(tx.session, one, 5, 0)] == [1]
        row = found[one][0]
        assert await rules.find(tx.session, row.id) is row
        assert await rules.find(tx.session, uuid7()) is None
        await rules.replace_targets(tx.session, row.id, [])
        assert row.id not in await rules.targets_of(tx.session, [row.id])
