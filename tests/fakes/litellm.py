"""A database as LiteLLM leaves one: the columns that an import reads, and some that it does not."""

from __future__ import annotations

import asyncpg

from fastllm_shared.keys import digest_of

CI_KEY = "sk-litellm-ci-key-0123456789abcdef"
TEAM_KEY = "sk-litellm-team-key-0123456789abcd"

TABLES = """
CREATE TABLE "LiteLLM_BudgetTable" (budget_id text PRIMARY KEY, max_budget double precision,
    soft_budget double precision, max_parallel_requests integer, tpm_limit bigint, rpm_limit bigint,
    budget_duration text);
CREATE TABLE "LiteLLM_TeamTable" (team_id text PRIMARY KEY, team_alias text, max_budget double precision,
    spend double precision DEFAULT 0, models text[], max_parallel_requests integer, tpm_limit bigint,
    rpm_limit bigint, budget_duration text, blocked boolean DEFAULT false);
CREATE TABLE "LiteLLM_UserTable" (user_id text PRIMARY KEY, user_alias text, user_email text, models text[],
    max_budget double precision, budget_duration text, tpm_limit bigint, rpm_limit bigint,
    max_parallel_requests integer);
CREATE TABLE "LiteLLM_VerificationToken" (token text PRIMARY KEY, key_name text, key_alias text,
    spend double precision DEFAULT 0, expires timestamp(3), models text[], aliases jsonb DEFAULT '{}',
    user_id text, team_id text, max_parallel_requests integer, metadata jsonb DEFAULT '{}', blocked boolean,
    tpm_limit bigint, rpm_limit bigint, max_budget double precision, budget_duration text, budget_id text);
"""


async def fill(url: str) -> None:
    """Two keys that work and one that is blocked, a team, a user, a budget."""
    connection = await asyncpg.connect(url.replace("postgresql+asyncpg://", "postgresql://"))
    await connection.execute(TABLES)
    await connection.execute(
        """
        INSERT INTO "LiteLLM_BudgetTable" (budget_id, max_budget, budget_duration) VALUES ('b1', 5, '30d');
        INSERT INTO "LiteLLM_TeamTable" (team_id, team_alias, models, rpm_limit)
            VALUES ('t1', 'research', '{chat}', 60);
        INSERT INTO "LiteLLM_UserTable" (user_id, user_email, models) VALUES ('u1', 'ann@example.org', '{}');
        """
    )
    insert = (
        'INSERT INTO "LiteLLM_VerificationToken" (token, key_name, key_alias, models, team_id, budget_id, blocked)'
        " VALUES ($1, $2, $3, $4, $5, $6, $7)"
    )
    rows = [
        (digest_of(CI_KEY).hex(), "sk-...cdef", "ci", ["chat", "team-00"], None, "b1", None),
        (digest_of(TEAM_KEY).hex(), "sk-...abcd", "team", [], "t1", None, False),
        (digest_of("sk-blocked").hex(), "sk-...cked", "blocked", [], None, None, True),
    ]
    for row in rows:
        await connection.execute(insert, *row)
    await connection.close()
