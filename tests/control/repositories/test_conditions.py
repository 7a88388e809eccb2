"""Names in conditions follow what is renamed."""

from __future__ import annotations

from typing import Any

import pytest

from fastllm_control.repositories import conditions
from fastllm_control.tables.configuration import RoutingRule
from fastllm_control.transaction import Database
from fastllm_shared.ids import uuid7
from tests.fakes.access import COMMAND, Access
from tests.fakes.configuration import Stock


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"roles": ["a"]}, {"roles": ['b/"c']}),
        ({"roles": ["x", "a", "A", "a"]}, {"roles": ["x", 'b/"c', "A", 'b/"c']}),
        ({"roles": ["ab"]}, {"roles": ["ab"]}),
        ({"roles": []}, {"roles": []}),
        ({"roles": None}, {"roles": None}),
        ({"principals": ["a"], "headers": {"roles": "a"}}, {"principals": ["a"], "headers": {"roles": "a"}}),
        ({}, {}),
    ],
)
async def test_rename(
    access: Access, database: Database, stock: Stock, before: dict[str, Any], after: dict[str, Any]
) -> None:
    model = await stock.frontend("m")
    async with database.begin(COMMAND) as tx:
        tx.session.add(RoutingRule(id=uuid7(), frontend_model_id=model, position=0, conditions=before))
        await tx.session.flush()
        await conditions.rename(tx.session, "roles", "a", 'b/"c')
    assert await access.rows("SELECT conditions FROM routing_rules") == [(after,)]
