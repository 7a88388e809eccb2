"""Reading LiteLLM's database."""

from __future__ import annotations

import asyncpg
import pytest

from fastllm_control.errors import Invalid
from fastllm_control.litellm import database as litellm_database
from tests.fakes.litellm import TABLES, fill


def plain(url: str) -> str:
    return url.replace("postgresql+asyncpg://", "postgresql://")


async def test_all_four_tables_are_read(empty_database_url: str) -> None:
    await fill(empty_database_url)
    found = await litellm_database.read(empty_database_url + "?schema=public&connection_limit=3")
    assert [row["key_alias"] for row in found.keys] == ["ci", "team", "blocked"]
    assert found.teams["t1"]["team_alias"] == "research"
    assert found.users["u1"]["user_email"] == "ann@example.org"
    assert found.budgets["b1"]["max_budget"] == 5.0


async def test_another_database_is_refused_in_one_line(empty_database_url: str) -> None:
    with pytest.raises(Invalid, match="not LiteLLM's database"):
        await litellm_database.read(empty_database_url)
    connection = await asyncpg.connect(plain(empty_database_url))
    await connection.execute(TABLES)
    await connection.close()
    assert (await litellm_database.read(empty_database_url)).keys == []


@pytest.mark.parametrize("url", ["postgresql://nobody:canary@127.0.0.1:1/x", "postgresql://", "canary"])
async def test_what_cannot_be_opened_says_nothing_of_the_address(url: str) -> None:
    with pytest.raises(Invalid) as refused:
        await litellm_database.read(url)
    assert "canary" not in refused.value.message
    assert "FASTLLM_LITELLM_DATABASE_URL" in refused.value.message
