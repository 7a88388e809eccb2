"""The suite's foundations: a real Postgres for each test process, and a database of its own for each test."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from fastllm_control.migrate import upgrade
from fastllm_control.postgres import EmbeddedPostgres
from tests.fakes.database import TestDatabases
from tests.fakes.gateway import Gateway
from tests.fakes.up import RunningUp


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """One server a test process (so one an xdist worker), without fsync."""
    folder = tmp_path_factory.mktemp("database")
    server = EmbeddedPostgres(folder, durable=False, settings={"max_connections": "200"})
    server.start()
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def databases(postgres_server: EmbeddedPostgres) -> TestDatabases:
    return TestDatabases(postgres_server, itertools.count(1))


@pytest.fixture(scope="session")
def migrated_template(databases: TestDatabases) -> str:
    """The name of a database that holds the whole schema and no rows but the seeded ones."""
    name = databases.create()
    # In a thread, because a running event loop of this one is not ours to disturb.
    with ThreadPoolExecutor(1) as threads:
        threads.submit(upgrade, databases.url(name)).result()
    return name


@pytest.fixture
def database_url(databases: TestDatabases, migrated_template: str) -> Iterator[str]:
    """A migrated database that nobody else uses, as `postgresql+asyncpg://…`."""
    name = databases.create(template=migrated_template)
    yield databases.url(name)
    databases.drop(name)


@pytest.fixture
def empty_database_url(databases: TestDatabases) -> Iterator[str]:
    """A database with nothing in it."""
    name = databases.create()
    yield databases.url(name)
    databases.drop(name)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Real processes, two proxies, one start for a module: its tests share it, and each exposes models of its
    own names."""
    folder = tmp_path_factory.mktemp("gateway") / "data"
    with RunningUp(folder, "--proxies", "2", "--config-poll", "1", "--health-report-interval", "1") as up:
        up.ready()
        yield Gateway(up)
        up.members()
    shutil.rmtree(folder)
