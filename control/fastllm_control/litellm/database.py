"""Reading LiteLLM's database: four tables, in one read-only transaction, whichever columns they have."""

from __future__ import annotations

import asyncpg

from fastllm_control.errors import Invalid
from fastllm_control.litellm.holders import Row, Tables

CONNECT_SECONDS = 10.0
STATEMENT_SECONDS = 60.0
_VARIABLE = "FASTLLM_LITELLM_DATABASE_URL"


async def read(url: str) -> Tables:
    """Everything about keys. Raises `Invalid`, saying nothing of the address."""
    try:
        connection = await asyncpg.connect(
            _plain(url), timeout=CONNECT_SECONDS, command_timeout=STATEMENT_SECONDS
        )
    except (TimeoutError, OSError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        reason = f"{type(error).__name__}"
        raise Invalid("unreachable", f"{_VARIABLE}: LiteLLM's database cannot be opened ({reason})") from None
    try:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            return Tables(
                keys=await _rows(connection, "LiteLLM_VerificationToken"),
                teams=_by(await _rows(connection, "LiteLLM_TeamTable"), "team_id"),
                users=_by(await _rows(connection, "LiteLLM_UserTable"), "user_id"),
                budgets=_by(await _rows(connection, "LiteLLM_BudgetTable"), "budget_id"),
            )
    except asyncpg.UndefinedTableError as error:
        raise Invalid("not_litellm", f"{_VARIABLE}: this is not LiteLLM's database: {error}") from None
    finally:
        await connection.close(timeout=CONNECT_SECONDS)


async def _rows(connection: asyncpg.Connection, table: str) -> list[Row]:
    return [dict(row) for row in await connection.fetch(f'SELECT * FROM "{table}"')]  # noqa: S608 (constants)


def _by(rows: list[Row], column: str) -> dict[str, Row]:
    return {str(row[column]): row for row in rows}


def _plain(url: str) -> str:
    """As asyncpg takes it: Prisma's addresses name parameters that only Prisma knows."""
    scheme, _, rest = url.partition("://")
    base = f"{scheme.partition('+')[0]}://{rest}"
    address, _, query = base.partition("?")
    kept = [part for part in query.split("&") if part.partition("=")[0] in ("sslmode", "sslrootcert", "host")]
    return f"{address}?{'&'.join(kept)}" if kept else address
