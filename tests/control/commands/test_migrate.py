"""`fastllm migrate`."""

from __future__ import annotations

from fastllm_control.migrate import newest_revision
from tests.fakes.command import fastllm


async def test_it_says_where_the_schema_is(empty_database_url: str) -> None:
    for _ in range(2):
        done = await fastllm(
            "migrate", url=empty_database_url.replace("postgresql+asyncpg://", "postgres://")
        )
        assert (done.code, done.errors) == (0, "")
        assert newest_revision() in done.out


async def test_it_needs_only_the_database() -> None:
    done = await fastllm("migrate")
    assert done.code == 2
    assert done.errors == "fastllm migrate: FASTLLM_DATABASE_URL: required, but not set\n"
