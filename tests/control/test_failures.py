"""Foreign exceptions as refusals, made by the real database."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from fastllm_control.config import DatabaseSettings
from fastllm_control.database import open_engine
from fastllm_control.errors import ApiError, Invalid, TooMany
from fastllm_control.failures import refusal_of, refused
from fastllm_control.transaction import Database

INSERT = "INSERT INTO principals (id, name, kind) VALUES (gen_random_uuid(), :name, :kind)"


async def run(database: Database, statements: tuple[str, ...], values: dict[str, Any]) -> None:
    async with database.engine.begin() as connection:
        for statement in statements:
            await connection.execute(text(statement), values)


async def raised(database: Database, *statements: str, **values: Any) -> ApiError | None:
    """The refusal that running the statements amounts to."""
    with pytest.raises((SQLAlchemyError, OSError)) as failure:
        await run(database, statements, values)
    return refusal_of(failure.value)


@pytest.mark.parametrize(
    ("statements", "values", "status", "code", "field"),
    [
        ((INSERT, INSERT), {"name": "a", "kind": "user"}, 409, "already_exists", "name"),
        ((INSERT,), {"name": "a", "kind": "robot"}, 400, "invalid_value", "kind"),
        ((INSERT,), {"name": None, "kind": "user"}, 400, "invalid_value", None),
        ((INSERT,), {"name": "a\0b", "kind": "user"}, 400, "invalid_value", None),
        (("SELECT CAST(:n AS bigint)",), {"n": 2**63}, 400, "invalid_value", None),
        (("SELECT CAST('x' AS integer)",), {}, 400, "invalid_value", None),
        (
            ("SET LOCAL statement_timeout = 10", "SELECT pg_sleep(5)"),
            {},
            503,
            "database_unavailable",
            None,
        ),
        (
            (
                "INSERT INTO principal_roles (principal_id, role_id)"
                " VALUES (gen_random_uuid(), gen_random_uuid())",
            ),
            {},
            409,
            "in_use",
            None,
        ),
        (
            (
                "CREATE TABLE weeks (week integer) PARTITION BY RANGE (week)",
                "CREATE TABLE first PARTITION OF weeks FOR VALUES FROM (1) TO (2)",
                "INSERT INTO first VALUES (5)",
            ),
            {},
            409,
            "concurrent_change",
            None,
        ),
        (("SELECT pg_terminate_backend(pg_backend_pid())",), {}, 503, "database_unavailable", None),
    ],
)
async def test_what_the_database_refuses(
    database: Database,
    statements: tuple[str, ...],
    values: dict[str, Any],
    status: int,
    code: str,
    field: str | None,
) -> None:
    found = await raised(database, *statements, **values)
    assert found is not None
    assert (found.status, found.code, found.field) == (status, code, field)


@pytest.mark.parametrize("statement", ["SELECT nonsense", "SELEC", "SELECT 1 / (SELECT 0 FROM nowhere)"])
async def test_a_statement_that_is_wrong_is_our_own_fault(database: Database, statement: str) -> None:
    assert await raised(database, statement) is None


async def test_nobody_listens() -> None:
    settings = DatabaseSettings(database_url="postgresql://u@127.0.0.1:1/d")
    engine = open_engine(settings)
    found = await raised(Database(engine), "SELECT 1")
    await engine.dispose()
    assert found is not None
    assert found.status == 503
    assert "127.0.0.1" not in found.message


def test_other_exceptions_are_defects() -> None:
    for error in (ZeroDivisionError(), KeyError("x"), RuntimeError("x"), AssertionError()):
        assert refusal_of(error) is None


def test_the_shape_of_a_refusal() -> None:
    response = refused(Invalid("bad", "why", "targets[0]"), "req-1")
    assert response.status_code == 400
    assert msgspec.json.decode(response.body) == {
        "error": {"code": "bad", "message": "why", "field": "targets[0]", "request_id": "req-1"}
    }
    assert response.headers["cache-control"] == "no-store"
    assert refused(TooMany("slow", "wait", 3), "r").headers["retry-after"] == "3"
