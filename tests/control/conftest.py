"""What tests of the control plane start from."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.fakes.control_plane import ControlPlane


@pytest.fixture
async def plane(database_url: str) -> AsyncIterator[ControlPlane]:
    """A control plane of its own, with one administrator."""
    async with ControlPlane.start(database_url) as started:
        yield started
