"""`fastllm apply`: what it prints, how it ends, and that a killed one leaves nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import text

from fastllm_control.transaction import Database
from tests.fakes.access import Access
from tests.fakes.command import fastllm, started
from tests.fakes.declared import CLOSED

FILE = f"""\
format: 1
providers:
- name: gpu-1
  api_base: {CLOSED}
  upstream_api_key: {{env: ENGINE_KEY}}
provider_models:
- name: qwen
  backends: [{{provider: gpu-1, upstream_model: Q}}]
"""
COMMITTING = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'UPDATE config%'"
PLAN = """\
+ provider gpu-1
+ provider model qwen
! the provider gpu-1 does not answer: the connection is refused
"""


def edit(file: str, before: str, after: str) -> None:
    Path(file).write_text(FILE.replace(before, after))


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "gateway.yaml"
    path.write_text(FILE)
    return str(path)


async def test_it_prints_its_plan_and_says_from_when_on_it_is_served(
    database_url: str, file: str, access: Access
) -> None:
    environ = {"ENGINE_KEY": "canary"}
    tried = await fastllm("apply", "-f", file, "--dry-run", url=database_url, environ=environ)
    assert (tried.code, tried.out, tried.errors) == (0, PLAN, "dry run: nothing was changed\n")
    assert await access.audited() == []
    done = await fastllm("apply", "-f", file, url=database_url, environ=environ)
    version = await access.version()
    said = f"applied; proxies that report version {version} or newer serve it\n"
    assert (done.code, done.out, done.errors) == (0, PLAN, said)
    again = await fastllm("apply", "--file", file, "--prune", url=database_url, environ=environ)
    assert (again.code, again.out, again.errors) == (0, "= nothing to change\n", "")
    ((via,),) = await access.rows("SELECT DISTINCT via FROM audit_events")
    assert via == "command"


async def test_standard_input_and_files_beside_the_configuration(
    database_url: str, file: str, tmp_path: Path
) -> None:
    (tmp_path / "engine-key").write_text("canary\n")
    edit(file, "env: ENGINE_KEY", "file: engine-key")
    assert (await fastllm("apply", "-f", file, url=database_url)).code == 0
    piped = await fastllm("apply", "-f", "-", url=database_url, typed=FILE)
    kept = "! the environment variable ENGINE_KEY is not set: the credential of gpu-1 stays as it is stored\n"
    assert (piped.code, piped.out) == (0, "= nothing to change\n" + kept)


async def test_every_problem_is_one_line_that_says_where(
    database_url: str, file: str, access: Access
) -> None:
    edit(file, "provider: gpu-1", "provider: gpu-2")
    done = await fastllm("apply", "-f", file, url=database_url)
    assert (done.code, done.out) == (1, "")
    assert done.errors.splitlines() == [
        f"fastllm apply: {file}: line 5, providers[0].upstream_api_key: the environment variable ENGINE_KEY"
        " is not set, and nothing is stored that could stay",
        f"fastllm apply: {file}: line 8, provider_models[0].backends[0].provider:"
        " there is no provider 'gpu-2'",
    ]
    assert await access.audited() == []


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 2, "--file: required, but not set"),
        (("-f", "/nowhere/gateway.yaml"), 1, "No such file or directory"),
        (("-f", "/"), 1, "Is a directory"),
        (("-f", "-", "--own-ports", "x"), 2, "FASTLLM_OWN_PORTS: port numbers"),
    ],
)
async def test_it_says_in_one_line_what_to_do(
    database_url: str, arguments: tuple[str, ...], code: int, said: str
) -> None:
    done = await fastllm("apply", *arguments, url=database_url, typed="format: 1\n")
    assert done.code == code
    assert done.errors.startswith("fastllm apply: ")
    assert said in done.errors
    assert done.errors.count("\n") == 1


async def test_the_encryption_key_is_needed_where_there_are_credentials(database_url: str, file: str) -> None:
    environ = {"FASTLLM_DATABASE_URL": database_url, "ENGINE_KEY": "canary"}
    done = await fastllm("apply", "-f", file, environ=environ)
    assert done.code == 1
    assert "FASTLLM_ENCRYPTION_KEY is needed" in done.errors
    assert (await fastllm("apply", "-f", "-", environ=environ, typed="format: 1\nroles: []\n")).code == 0


async def test_forbidden_addresses_are_refused(database_url: str) -> None:
    for address in ("http://127.0.0.1:4001/v1", "http://169.254.169.254/v1"):
        typed = f"format: 1\nproviders:\n- {{name: p, api_base: '{address}'}}\n"
        done = await fastllm("apply", "-f", "-", url=database_url, typed=typed)
        assert done.code == 1
        assert "-: line 3, providers[0].api_base: the address" in done.errors


async def test_one_that_is_killed_in_the_middle_leaves_nothing(
    database_url: str, file: str, database: Database, access: Access
) -> None:
    async with database.engine.connect() as blocker:
        # Whoever commits takes this row last: everything else has been written by then.
        await blocker.execute(text("SELECT 1 FROM config FOR UPDATE"))
        process = await started("apply", "-f", file, url=database_url, environ={"ENGINE_KEY": "canary"})
        for _ in range(1500):
            if await access.rows(COMMITTING):
                break
            await asyncio.sleep(0.02)
        else:
            raise AssertionError("it never came to its commit")
        process.kill()
        await process.communicate()
        await blocker.rollback()
    assert await access.rows("SELECT 1 FROM providers UNION ALL SELECT 1 FROM provider_models") == []
    assert await access.audited() == []
    done = await fastllm("apply", "-f", file, url=database_url, environ={"ENGINE_KEY": "canary"})
    assert (done.code, done.out) == (0, PLAN)
