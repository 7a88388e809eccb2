"""The composition: every part is there once, nothing runs before it is started, all of it ends."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from fastllm_control.app import build_app, build_services, started, utc_now
from fastllm_control.config import ControlSettings
from tests.fakes.log import CapturedLog


def settings_for(url: str) -> ControlSettings:
    return ControlSettings(database_url=url, encryption_key="11" * 32, proxy_token="proxy-token-for-tests")


async def test_building_connects_to_nothing() -> None:
    settings = settings_for("postgresql://u@127.0.0.1:1/d")
    services = build_services(settings, CapturedLog().log)
    app = build_app(services)
    assert app.routes
    assert services.publisher.current is None
    assert asyncio.all_tasks() == {asyncio.current_task()}
    with pytest.raises(dataclasses.FrozenInstanceError):
        services.settings = settings  # type: ignore[misc]


async def test_what_is_started_ends(database_url: str) -> None:
    services = build_services(settings_for(database_url), CapturedLog().log)
    async with started(services):
        assert await services.publisher.newer_than(0, 10) is not None
        assert len(asyncio.all_tasks()) > 1
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert services.database.engine.pool.checkedout() == 0  # type: ignore[attr-defined]


async def test_it_starts_without_a_database() -> None:
    """One that is running goes on when the database goes; so it must not depend on it to come up."""
    log = CapturedLog()
    settings = settings_for("postgresql://u@127.0.0.1:1/d")
    services = build_services(settings, log.log)
    async with started(services):
        assert await services.publisher.newer_than(0, 0.2) is None


def test_the_clock_has_a_zone() -> None:
    assert utc_now().utcoffset() is not None
