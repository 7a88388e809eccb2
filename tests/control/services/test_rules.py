from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from fastllm_control.errors import Conflict, Invalid, NotFound
from fastllm_control.forms import FrontendModelPatch, NewRule, RuleForm, RulePatch, Target
from fastllm_control.repositories import rules as repository
from fastllm_control.services import frontend_models, rules
from fastllm_control.transaction import Change, Database
from fastllm_shared.ids import uuid7
from fastllm_shared.snapshot import Conditions
from tests.fakes.configuration import ACTOR, Stock


def tagged(tag: str, position: int | None = None) -> NewRule:
    return NewRule(tag=tag, targets=(Target("a"),), position=position)


async def standing(database: Database, model: str = "one") -> Sequence[tuple[int, str | None]]:
    async with database.read() as session:
        row = await frontend_models.require(session, model)
        found = (await repository.of_models(session, [row.id])).get(row.id, ())
        return [(rule.position, rule.tag) for rule in found]


async def test_positions_stay_dense(database: Database, stock: Stock) -> None:
    await stock.frontend("one")
    made = {}
    for tag, position in (("a", 7), ("b", None), ("c", 0), ("d", 1), ("e", 4)):
        async with database.begin(ACTOR) as tx:
            row = await rules.create(tx, "one", tagged(tag, position))
            made[tag] = row.id
            assert [note.action for note in tx.notes] == ["rule.create"]
    assert await standing(database) == [(0, "c"), (1, "d"), (2, "a"), (3, "b"), (4, "e")]
    async with database.begin(ACTOR) as tx:
        await rules.change(tx, made["b"], RulePatch(position=1))
        (note,) = tx.notes
    assert note.changes == {"position": Change(3, 1)}
    assert await standing(database) == [(0, "c"), (1, "b"), (2, "d"), (3, "a"), (4, "e")]
    async with database.begin(ACTOR) as tx:
        await rules.change(tx, made["c"], RulePatch(position=900))
        await rules.delete(tx, made["d"])
    assert await standing(database) == [(0, "b"), (1, "a"), (2, "e"), (3, "c")]
    async with database.begin(ACTOR) as tx:
        await rules.change(tx, made["c"], RulePatch(position=900))
        await rules.change(tx, made["b"], RulePatch(position=0, tag="b"))
    assert (tx.version, tx.notes) == (None, [])


async def test_writers_at_once_leave_no_gap(database: Database, stock: Stock) -> None:
    await stock.frontend("one")

    async def write(at: int) -> None:
        async with database.begin(ACTOR) as tx:
            row = await rules.create(tx, "one", tagged(str(at), at % 3))
        async with database.begin(ACTOR) as tx:
            if at % 4:
                await rules.change(tx, row.id, RulePatch(position=at % 5))
            else:
                await rules.delete(tx, row.id)

    await asyncio.gather(*(write(at) for at in range(12)))
    found = await standing(database)
    assert [position for position, _ in found] == list(range(9))
    assert sorted(int(tag or "") for _, tag in found) == [1, 2, 3, 5, 6, 7, 9, 10, 11]


async def test_two_that_would_close_a_circle_at_once(database: Database, stock: Stock) -> None:
    for name in ("one", "two"):
        await stock.frontend(name)

    async def jump(source: str, destination: str) -> bool:
        try:
            async with database.begin(ACTOR) as tx:
                await rules.create(tx, source, NewRule(action="jump", jump=destination))
        except Invalid:
            return False
        return True

    assert sorted(await asyncio.gather(jump("one", "two"), jump("two", "one"))) == [False, True]


async def test_an_audit_event_tells_what_a_rule_is(database: Database, stock: Stock) -> None:
    await stock.frontend("one")
    when = Conditions(stream=False, headers={"X-Tier": "batch"}, roles=("ops",))
    form = NewRule(when=when, targets=(Target("a", 2),), policy="cheapest", tag="t")
    async with database.begin(ACTOR) as tx:
        row = await rules.create(tx, "one", form)
        await rules.change(tx, row.id, RulePatch(action="deny", deny_status=403))
        await rules.change(tx, row.id, RulePatch(when=Conditions(), tag=None))
        await rules.delete(tx, row.id)
        notes = tx.notes
    plain = {"stream": False, "headers": {"X-Tier": "batch"}, "roles": ("ops",)}
    assert [note.action for note in notes] == ["rule.create", "rule.update", "rule.update", "rule.delete"]
    assert {(note.target_kind, note.target_id, note.target_name) for note in notes} == {
        ("rule", str(row.id), "one")
    }
    assert notes[0].changes == {
        "position": Change(None, 0),
        "when": Change(None, plain),
        "targets": Change(None, ({"target": "a", "weight": 2},)),
        "policy": Change(None, "cheapest"),
        "tag": Change(None, "t"),
        "action": Change(None, "route"),
    }
    assert notes[1].changes == {
        "action": Change("route", "deny"),
        "targets": Change(({"target": "a", "weight": 2},), None),
        "policy": Change("cheapest", None),
        "deny_status": Change(None, 403),
    }
    assert notes[2].changes == {"when": Change(plain, None), "tag": Change("t", None)}
    assert notes[3].changes == {
        "position": Change(0, None),
        "action": Change("deny", None),
        "deny_status": Change(403, None),
    }


async def test_a_patch_is_judged_with_what_stands(database: Database, stock: Stock) -> None:
    await stock.frontend("one")
    async with database.begin(ACTOR) as tx:
        row = await rules.create(tx, "one", tagged("t"))
        for patch, field in (
            (RulePatch(action="deny"), "deny_status"),
            (RulePatch(deny_status=403), "deny_status"),
            (RulePatch(action="jump"), "jump"),
            (RulePatch(action="jump", jump="nothing"), "jump"),
            (RulePatch(action="jump", jump="one"), "jump"),
            (RulePatch(action="deny", deny_status=403, targets=(Target("a"),)), "targets"),
            (RulePatch(when=Conditions(min_max_tokens=9, max_max_tokens=8)), "when.min_max_tokens"),
        ):
            with pytest.raises(Invalid) as refused:
                await rules.change(tx, row.id, patch)
            assert refused.value.field == field, patch
        assert (await rules.forms_of(tx.session, [row]))[0] == RuleForm(tag="t", targets=(Target("a"),))


async def test_a_list_is_replaced_and_what_stays_keeps_its_id(database: Database, stock: Stock) -> None:
    await stock.frontend("one")
    await stock.frontend("two")
    same = RuleForm(when=Conditions(principals=("x",)), targets=(Target("a"), Target("b", 3)))
    jump = RuleForm(action="jump", jump="two", tag="j")
    denies = RuleForm(action="deny", deny_status=404)
    async with database.begin(ACTOR) as tx:
        model = await rules.replace_all(tx, "one", [same, denies, same])
        before = (await repository.of_models(tx.session, [model.id]))[model.id]
        ids = [row.id for row in before]
    async with database.begin(ACTOR) as tx:
        await rules.replace_all(tx, "one", [jump, same])
        (note,) = tx.notes
        after = (await repository.of_models(tx.session, [model.id]))[model.id]
        assert list(await rules.forms_of(tx.session, after)) == [jump, same]
    assert [row.position for row in after] == [0, 1]
    assert after[1].id == ids[0]
    assert (note.action, note.target_name) == ("frontend_model.set_rules", "one")
    assert note.changes["rules"].after[0] == {"action": "jump", "jump": "two", "tag": "j"}
    async with database.begin(ACTOR) as tx:
        await frontend_models.delete(tx, "two")
    async with database.begin(ACTOR) as tx:
        await rules.replace_all(
            tx, "one", [jump, same]
        )  # the destination had to exist only when it was written
        assert tx.notes == []
        with pytest.raises(Invalid) as refused:
            await rules.replace_all(tx, "one", [same, denies, RuleForm(action="jump", jump="three")])
        assert refused.value.field == "rules[2].jump"
        with pytest.raises(Invalid) as refused:
            await rules.replace_all(tx, "one", [same, RuleForm(jump="x")])
        assert refused.value.field == "rules[1].jump"
        with pytest.raises(Invalid) as refused:
            await rules.replace_all(tx, "one", [same, RuleForm(action="jump", jump="one")])
        assert (refused.value.code, refused.value.field) == ("jump_loop", "rules[1].jump")


async def test_a_rename_that_would_close_a_circle_is_refused(database: Database, stock: Stock) -> None:
    for name in ("one", "two", "three"):
        await stock.frontend(name)
    async with database.begin(ACTOR) as tx:
        await rules.create(tx, "one", NewRule(action="jump", jump="two"))
        await rules.create(tx, "three", NewRule(action="jump", jump="one"))
        await frontend_models.delete(tx, "two")
    with pytest.raises(Invalid) as refused:
        async with database.begin(ACTOR) as tx:
            await frontend_models.change(tx, "three", FrontendModelPatch(name="two"))
    assert (refused.value.code, refused.value.field) == ("jump_loop", "name")
    assert "one → two" in refused.value.message
    async with database.begin(ACTOR) as tx:
        await frontend_models.change(tx, "three", FrontendModelPatch(name="four"))


async def test_there_is_a_limit(database: Database, stock: Stock) -> None:
    await stock.frontend("one")
    async with database.begin(ACTOR) as tx:
        await rules.replace_all(tx, "one", [RuleForm(action="deny", deny_status=403)] * rules.MOST_RULES)
        with pytest.raises(Conflict):
            await rules.create(tx, "one", tagged("t"))
        with pytest.raises(Conflict):
            await rules.replace_all(tx, "one", [RuleForm()] * (rules.MOST_RULES + 1))


async def test_what_is_not_there(database: Database) -> None:
    async with database.begin(ACTOR) as tx:
        with pytest.raises(NotFound):
            await rules.create(tx, "nothing", tagged("t"))
        with pytest.raises(NotFound):
            await rules.replace_all(tx, "nothing", [])
        with pytest.raises(NotFound):
            await rules.change(tx, uuid7(), RulePatch())
        with pytest.raises(NotFound):
            await rules.delete(tx, uuid7())
