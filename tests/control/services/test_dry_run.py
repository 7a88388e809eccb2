from __future__ import annotations

import datetime

import msgspec
import pytest
from sqlalchemy import text

from fastllm_control.errors import Conflict, Invalid
from fastllm_control.forms import NewRule, Target
from fastllm_control.services import dry_run, rules
from fastllm_control.services.dry_run import Question
from fastllm_control.transaction import Database
from fastllm_shared.snapshot import Conditions
from tests.fakes.access import Access
from tests.fakes.configuration import ACTOR, RING, Stock

NOW = datetime.datetime(2026, 7, 1, 12, tzinfo=datetime.UTC)


def whole(body: bytes) -> Question:
    return Question(body=msgspec.Raw(body))


async def test_the_database_is_asked_as_it_is_now(database: Database, stock: Stock, access: Access) -> None:
    await stock.provider("gpu")
    await stock.model("qwen", "gpu")
    identity = await stock.frontend("org/assistant", "qwen")
    ann = await access.principal("ann", await access.role("r", ("model:invoke", "model/org/assistant")))
    async with database.begin(ACTOR) as tx:
        when = Conditions(roles=("r",), after="12:00", before="12:01")
        await rules.create(tx, "org/assistant", NewRule(when=when, targets=(Target("qwen"),)))
    for model, principal in (("org/assistant", "ann"), (str(identity), str(ann.principal_id))):
        async with database.read() as session:
            question = Question(model=model, principal=principal)
            told = await dry_run.answer(session, question, None, NOW, RING.open)
        assert (told.rule, told.granted, told.request.at) == (0, True, NOW)
        assert [link.target for link in told.chain] == ["qwen"]
    async with database.read() as session:
        late = await dry_run.answer(session, question, None, NOW + datetime.timedelta(minutes=1), RING.open)
        assert [one.failed for one in late.rejected] == ["before"]
        with pytest.raises(Invalid) as refused:
            await dry_run.answer(session, Question(model="org/assistant"), None, NOW, RING.open)
        assert refused.value.field == "principal"


async def test_a_model_that_is_not_served(database: Database, stock: Stock, access: Access) -> None:
    await stock.frontend("assistant")
    await access.principal("ann")
    async with database.begin(ACTOR) as tx:
        await rules.create(tx, "assistant", NewRule())
        await tx.session.execute(text("""UPDATE routing_rules SET conditions = '{"colour": 1}'"""))
    async with database.read() as session:
        with pytest.raises(Conflict) as refused:
            await dry_run.answer(session, Question(model="assistant", principal="ann"), None, NOW, RING.open)
    assert refused.value.field == "model"
    assert "colour" in refused.value.message


def test_what_a_body_says() -> None:
    assert dry_run.read_body(Question()) == dry_run.Read()
    assert dry_run.read_body(whole(b'{"model":"a/b","stream":true}')) == dry_run.Read("a/b", stream=True)
    assert dry_run.read_body(whole(b'{"stream":1,"x":1,"x":2}')) == dry_run.Read()


@pytest.mark.parametrize(
    "body", [b"[]", b"7", b'{"model":1}', b'{"model":"a","model":"a"}', b'{"x":' * 9000 + b"1" + b"}" * 9000]
)
def test_a_body_that_is_none(body: bytes) -> None:
    with pytest.raises(Invalid) as refused:
        dry_run.read_body(whole(body))
    assert refused.value.field == "body"
