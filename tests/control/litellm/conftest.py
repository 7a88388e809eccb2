"""What tests of imports start from."""

from __future__ import annotations

import pytest

from fastllm_control.transaction import Database
from tests.fakes.declared import Files


@pytest.fixture
def files(database: Database) -> Files:
    """Applies files of ours to `database`."""
    return Files(database)
