from __future__ import annotations

import pytest

from fastllm_control.errors import Invalid
from fastllm_control.forms import NewRule
from fastllm_control.services import jumps, rules
from fastllm_control.transaction import Database
from tests.fakes.configuration import ACTOR, Stock


def test_a_circle_is_told_by_its_shortest_way() -> None:
    graph = {"a": {"b", "c"}, "b": {"d"}, "d": {"a"}, "c": {"a"}, "x": {"a"}}
    assert jumps.circle(graph, "a") == ["a", "c", "a"]
    assert jumps.circle(graph, "b") == ["b", "d", "a", "b"]
    assert jumps.circle(graph, "x") is None
    assert jumps.circle(graph, "unknown") is None
    assert jumps.circle({"a": {"a"}}, "a") == ["a", "a"]


def test_a_long_chain_is_no_circle() -> None:
    chain = {str(at): {str(at + 1)} for at in range(5000)}
    assert jumps.circle(chain, "0") is None
    assert len(jumps.circle({**chain, "5000": {"0"}}, "0") or ()) == 5002


async def test_a_destination_is_known_by_its_name(database: Database, stock: Stock) -> None:
    identity = await stock.frontend("one")
    async with database.begin(ACTOR) as tx:
        assert await jumps.destination(tx, str(identity), "jump") == "one"
        with pytest.raises(Invalid) as refused:
            await jumps.destination(tx, "two", "rules[1].jump")
    assert refused.value.field == "rules[1].jump"


async def test_the_first_step_names_the_field(database: Database, stock: Stock) -> None:
    for name in ("one", "two", "three"):
        await stock.frontend(name)
    async with database.begin(ACTOR) as tx:
        await rules.create(tx, "two", NewRule(action="jump", jump="one"))
        fields = {"three": "rules[0].jump", "two": "rules[1].jump"}
        with pytest.raises(Invalid) as refused:
            await jumps.refuse_circle(tx, "one", list(fields), fields, "jump")
        assert (refused.value.code, refused.value.field) == ("jump_loop", "rules[1].jump")
        assert "one → two → one" in refused.value.message
        await jumps.refuse_circle(tx, "one", ["three"], fields, "jump")
        await jumps.refuse_circle(tx, "one", None, fields, "jump")
