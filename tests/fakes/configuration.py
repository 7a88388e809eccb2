"""Rows of configuration for tests that need some: through the services, each in a transaction of its own."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from fastllm_control.access import Actor
from fastllm_control.dial import DialResult
from fastllm_control.forms import NewBackend, NewFrontendModel, NewProvider, NewProviderModel, Target
from fastllm_control.secrets import Keyring
from fastllm_control.services import frontend_models, provider_models, providers
from fastllm_control.transaction import Database

ACTOR = Actor(name="tests", via="command")
RING = Keyring.parse("ab" * 32)


class Stock:
    """Adds to one database; every method returns the new row's id."""

    def __init__(self, database: Database) -> None:
        self.database = database

    async def provider(self, name: str, **more: Any) -> UUID:
        form = NewProvider(name=name, **{"api_base": f"http://{name}:8000/v1", **more})
        async with self.database.begin(ACTOR) as tx:
            return (await providers.create(tx, RING, form, DialResult(True, 200))).id

    async def model(self, name: str, *served_by: str) -> UUID:
        """A provider model, served by those providers under its own name."""
        backends = tuple(NewBackend(provider=provider, upstream_model=name) for provider in served_by)
        async with self.database.begin(ACTOR) as tx:
            return (await provider_models.create(tx, NewProviderModel(name=name, backends=backends))).id

    async def frontend(self, name: str, *targets: str) -> UUID:
        form = NewFrontendModel(name=name, targets=tuple(Target(target) for target in targets))
        async with self.database.begin(ACTOR) as tx:
            return (await frontend_models.create(tx, form)).id
