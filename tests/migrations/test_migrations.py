"""The migrations as a whole: what they make, what each of them promises, how they are shipped."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import CheckConstraint, Connection, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from fastllm_control.tables.everything import METADATA, is_modelled

ROOT = Path(__file__).parents[2]
VERSIONS = sorted((ROOT / "migrations" / "versions").glob("*.py"))


def _include(entry: Any, name: str | None, kind: str, reflected: bool, compared: Any) -> bool:
    table = getattr(entry, "table", None)
    return is_modelled(name if table is None else table.name, "table" if table is not None else kind, {})


def _differences(connection: Connection) -> list[Any]:
    options = {"compare_type": True, "compare_server_default": True, "include_object": _include}
    return list(compare_metadata(MigrationContext.configure(connection, opts=options), METADATA))


async def test_the_migrated_schema_is_the_one_of_the_models(database_url: str) -> None:
    engine = create_async_engine(database_url, poolclass=NullPool)
    async with engine.connect() as connection:
        assert await connection.run_sync(_differences) == []
        # Autogenerate looks at no check constraints: their names, at least, must be the same.
        found = await connection.execute(
            text(
                "SELECT conname FROM pg_constraint WHERE contype = 'c' AND conrelid::regclass::text = ANY(:t)"
            ),
            {"t": list(METADATA.tables)},
        )
        migrated = set(found.scalars())
    await engine.dispose()
    modelled = {
        str(constraint.name)
        for table in METADATA.tables.values()
        for constraint in table.constraints
        if isinstance(constraint, CheckConstraint)
    }
    assert migrated == modelled


def test_every_table_of_the_specification_is_modelled() -> None:
    assert set(METADATA.tables) >= {
        *("principals", "roles", "role_permissions", "principal_roles", "api_keys", "sessions"),
        *("providers", "provider_catalogue", "provider_models", "backends", "pools", "pool_members"),
        *("frontend_models", "routing_rules", "rule_targets", "default_targets"),
        *("limits", "budgets", "budget_alerts", "audit_events", "config", "settings"),
        *("usage_events", "usage_rollup_hourly", "gateway_rejections", "published_snapshots", "replicas"),
    }


@pytest.mark.parametrize("path", VERSIONS, ids=lambda path: str(path.stem))
def test_each_migration_keeps_its_promises(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    number, _, slug = path.stem.partition("_")
    assert re.fullmatch(r"\d{4}", number)
    assert slug
    assert f'revision = "{number}"' in source
    before = "None" if number == "0001" else f'"{int(number) - 1:04}"'
    assert f"down_revision = {before}" in source
    docstring = ast.get_docstring(ast.parse(source)) or ""
    assert "Safe for the previous release's code" in docstring
    assert "SET LOCAL lock_timeout" in source
    assert "SET LOCAL statement_timeout" in source


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_the_migrations_and_finds_them(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    shipped = tmp_path / "fastllm_control" / "migrations"
    assert (shipped / "env.py").is_file()
    assert [path.name for path in sorted((shipped / "versions").glob("*.py"))] == [p.name for p in VERSIONS]
    code = (
        "from fastllm_control import migrate; print(migrate.newest_revision(), migrate.__file__, sep='\\n')"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    revision, module = done.stdout.split()
    assert revision == VERSIONS[-1].stem.partition("_")[0]
    assert Path(module).is_relative_to(tmp_path)
