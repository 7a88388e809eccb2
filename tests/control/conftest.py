"""What tests of the control plane start from."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from fastllm_control.config import DatabaseSettings
from fastllm_control.database import open_engine
from fastllm_control.transaction import Database
from tests.fakes.access import Access
from tests.fakes.configuration import Stock
from tests.fakes.control_plane import ControlPlane
from tests.fakes.declared import Files


@pytest.fixture
async def plane(database_url: str) -> AsyncIterator[ControlPlane]:
    """A control plane of its own, with one administrator."""
    async with ControlPlane.start(database_url) as started:
        yield started


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """A migrated database of the test's own, opened."""
    engine = open_engine(DatabaseSettings(database_url=database_url))
    yield Database(engine)
    await engine.dispose()


@pytest.fixture
def stock(database: Database) -> Stock:
    """Puts configuration into `database`."""
    return Stock(database)


@pytest.fixture
def access(database: Database) -> Access:
    """Puts principals, roles and keys into `database`."""
    return Access(database)


@pytest.fixture
def files(database: Database) -> Files:
    """Applies configuration files to `database`."""
    return Files(database)
