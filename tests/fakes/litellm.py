"""What a LiteLLM proxy leaves behind: a configuration, imported without dialling anybody, and a database (the
columns that an import reads, and some that it does not)."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import asyncpg
import yaml

from fastllm_control.declared.applying import Means
from fastllm_control.declared.references import GivenSecrets
from fastllm_control.dial import Dialer, DialResult, Endpoint
from fastllm_control.litellm import converting, importing
from fastllm_control.litellm.holders import Holders
from fastllm_control.litellm.importing import Imported, Wanted
from fastllm_control.secrets import Keyring
from fastllm_control.transaction import Database
from fastllm_shared.addresses import AddressPolicy
from fastllm_shared.keys import digest_of
from tests.fakes.configuration import ACTOR, RING

REALISTIC = Path(__file__).parents[1] / "control" / "litellm" / "realistic.yaml"
MASTER_KEY = "sk-kJ8vQ2rX7mT4pL9wZ3nB6yC1"
CLOUD_KEYS = (
    *("ENGINE_C_KEY", "AZURE_EU_KEY", "AZURE_US_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GROQ_API_KEY"),
    *("TOGETHERAI_API_KEY", "MISTRAL_API_KEY", "GEMINI_API_KEY", "OPENROUTER_API_KEY", "FIREWORKS_API_KEY"),
    *("XAI_API_KEY", "PERPLEXITYAI_API_KEY", "CEREBRAS_API_KEY"),
)
ENVIRON = {
    **{f"ENGINE_{name}": f"http://127.0.0.1:9/{name}" for name in ("A", "B", "C", "DOWN")},
    **{name: f"canary-{name}" for name in CLOUD_KEYS},
    "LITELLM_MASTER_KEY": MASTER_KEY,
}


class DeafDialer(Dialer):
    """Reaches nobody."""

    async def dial(self, endpoint: Endpoint) -> DialResult:
        return DialResult(False, reason="not dialled in tests")


def realistic() -> dict[str, Any]:
    """The configuration, to be edited."""
    config: dict[str, Any] = yaml.safe_load(REALISTIC.read_text(encoding="utf-8"))
    return config


async def imported(
    database: Database,
    config: Mapping[str, Any],
    environ: Mapping[str, str] = ENVIRON,
    holders: Holders | None = None,
    ring: Keyring = RING,
    **flags: bool,
) -> Imported:
    """Import it as the command does."""
    found = converting.convert(config, environ)
    assert found.errors == ()
    secrets = GivenSecrets(found.secrets)
    means = Means(ring, DeafDialer(AddressPolicy()), secrets, lambda: datetime.datetime.now(datetime.UTC))
    wanted = Wanted(found.document, found.master_key, holders)
    switches = {"take_over": False, "dry_run": False, **flags}
    return await importing.perform(database, ACTOR, means, wanted, **switches)


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
        'INSERT INTO "LiteLLM_VerificationToken" '
        " (token, key_name, key_alias, models, team_id, budget_id, blocked)"
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
