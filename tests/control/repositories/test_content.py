"""Reading everything that a snapshot is built from, out of a real database."""

from __future__ import annotations

import datetime
from typing import Any

from sqlalchemy import text

from fastllm_control.repositories import content
from fastllm_control.services import keys, principals
from fastllm_control.snapshot import build
from fastllm_control.snapshot_rows import Rows
from fastllm_control.transaction import Database
from fastllm_shared.ids import uuid7
from fastllm_shared.keys import digest_of
from fastllm_shared.snapshot import BudgetEntry, KeyEntry, LimitsEntry
from tests.fakes.configuration import ACTOR, RING, Stock

NOW = datetime.datetime.now(datetime.UTC)


async def read(database: Database) -> Rows:
    async with database.read() as session:
        return await content.read(session)


async def execute(database: Database, *statements: str) -> None:
    async with database.engine.begin() as connection:
        for statement in statements:
            await connection.execute(text(statement))


async def test_a_fresh_database_holds_nothing_but_its_version(database: Database) -> None:
    rows = await read(database)
    async with database.read() as session:
        assert await content.version(session) == (rows.version, rows.history)
    assert abs(rows.version / 1e6 - NOW.timestamp()) < 3600
    assert (rows.keys, rows.principals, rows.providers, rows.frontend_models) == ([], [], [], [])


async def test_the_version_is_that_of_the_rows(database: Database, stock: Stock) -> None:
    """Rows that commit while others are being read are not seen, and neither is their version."""
    await stock.model("seen")
    async with database.read() as session:
        first = await content.version(session)
        await stock.model("unseen")
        rows = await content.read(session)
    assert (rows.version, rows.history) == first
    assert [model.name for model in rows.models] == ["seen"]
    assert (await read(database)).version > rows.version


async def add_key(database: Database, holder: str, expires: datetime.datetime | None, scope: Any) -> str:
    async with database.begin(ACTOR) as tx:
        return (await keys.create(tx, holder, "k", scope, expires, NOW)).key


async def test_keys_that_work_and_no_others(database: Database) -> None:
    async with database.begin(ACTOR) as tx:
        holder = (await principals.create(tx, "team", "service_account")).id
    later = NOW + datetime.timedelta(days=1)
    eternal = await add_key(database, "team", None, "invoke")
    lasting = await add_key(database, "team", later, "admin")
    await execute(
        database,
        "INSERT INTO api_keys (id, principal_id, name, digest, prefix, disabled, expires_at) VALUES"
        f" ('{uuid7()}', '{holder}', 'revoked', 'a', 'sk-a', true, NULL),"
        f" ('{uuid7()}', '{holder}', 'expired', 'b', 'sk-b', false, now() - interval '1 second')",
    )
    found = {entry.digest: entry for entry in (await read(database)).keys}
    assert found.keys() == {digest_of(eternal), digest_of(lasting)}
    entry = found[digest_of(lasting)]
    assert entry == KeyEntry(
        digest_of(lasting), entry.id, str(holder), lasting[:11], "admin", later.timestamp()
    )
    assert found[digest_of(eternal)].expires_at is None


async def test_principals_with_all_that_hangs_on_them(database: Database) -> None:
    async with database.begin(ACTOR) as tx:
        team = (await principals.create(tx, "team", "service_account")).id
        bare = (await principals.create(tx, "bare", "user")).id
    role, twin = uuid7(), uuid7()
    await execute(
        database,
        f"INSERT INTO roles (id, name) VALUES ('{role}', 'readers'), ('{twin}', 'also')",
        "INSERT INTO role_permissions (role_id, verb, resource) VALUES"
        f" ('{role}', 'model:invoke', 'model/a'), ('{twin}', 'model:invoke', 'model/a'),"
        f" ('{role}', 'usage:read', '*')",
        "INSERT INTO principal_roles (principal_id, role_id)"
        f" VALUES ('{team}', '{role}'), ('{team}', '{twin}')",
        f"INSERT INTO limits (principal_id, requests_per_min) VALUES ('{team}', 60)",
        'INSERT INTO budgets (id, principal_id, tokens_total, "window", timezone, window_start, window_end)'
        f" VALUES ('{uuid7()}', '{team}', 1000, 'daily', 'Europe/Brussels', now(), now())",
    )
    rows = await read(database)
    assert [(row.name, row.kind) for row in rows.principals] == [
        ("bare", "user"),
        ("team", "service_account"),
    ]
    limits, budget = rows.principals[1].limits, rows.principals[1].budget
    assert limits == LimitsEntry(requests_per_min=60)
    assert budget == BudgetEntry(tokens_total=1000, window="daily", timezone="Europe/Brussels")
    assert (rows.roles[team], rows.resources[team]) == (["also", "readers"], ["model/a"])
    assert bare not in rows.roles
    assert rows.principals[0].limits is None


async def test_routes_in_their_order(database: Database, stock: Stock) -> None:
    await stock.provider("gpu-1")
    await stock.model("qwen", "gpu-1")
    frontend = await stock.frontend("assistant", "b", "a", "c")
    pool, first, second = uuid7(), uuid7(), uuid7()
    await execute(
        database,
        f"INSERT INTO pools (id, name, policy) VALUES ('{pool}', 'local', 'round-robin')",
        "INSERT INTO pool_members (pool_id, position, provider_model, weight)"
        f" VALUES ('{pool}', 0, 'qwen', 2)",
        "INSERT INTO routing_rules (id, frontend_model_id, position, conditions, tag) VALUES"
        f" ('{second}', '{frontend}', 1, '{{}}', 'second'),"
        f" ('{first}', '{frontend}', 0, '{{\"stream\": true}}', 'first')",
        "INSERT INTO rule_targets (rule_id, position, target)"
        f" VALUES ('{first}', 1, 'y'), ('{first}', 0, 'x')",
        "INSERT INTO settings (name, value) VALUES ('fallback_model', '\"assistant\"')",
    )
    built = build(await read(database), RING.open)
    assert built.dropped == ()
    (entry,) = built.snapshot.frontend_models
    assert [target.target for target in entry.targets] == ["b", "a", "c"]
    assert [rule.tag for rule in entry.rules] == ["first", "second"]
    assert entry.rules[0].when.stream is True
    assert [target.target for target in entry.rules[0].targets] == ["x", "y"]
    (member,) = built.snapshot.pools[0].members
    assert (member.backend_id, member.weight) == (built.snapshot.backends[0].id, 2)
    assert built.snapshot.fallback_model == "assistant"


async def test_a_fallback_that_is_unset_or_no_name_is_none(database: Database) -> None:
    assert (await read(database)).fallback_model is None
    await execute(database, "INSERT INTO settings (name, value) VALUES ('fallback_model', 'null')")
    assert (await read(database)).fallback_model is None
