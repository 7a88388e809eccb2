"""Configuration files against one database: applied, exported, and what proxies are served, by names."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import msgspec

from fastllm_control.access import Actor
from fastllm_control.declared.applying import Means, perform
from fastllm_control.declared.export import export
from fastllm_control.declared.plan import Plan
from fastllm_control.declared.references import GivenSecrets
from fastllm_control.declared.text import read, write
from fastllm_control.dial import Dialer
from fastllm_control.repositories import content
from fastllm_control.secrets import Keyring
from fastllm_control.snapshot import build
from fastllm_control.transaction import Database
from fastllm_shared.addresses import AddressPolicy
from tests.fakes.configuration import ACTOR, RING

CLOSED = "http://127.0.0.1:9/v1"
"""Nobody listens there: a dial is refused at once."""


class Files:
    """`secrets` is what references stand for, by the name of the variable."""

    def __init__(self, database: Database, ring: Keyring = RING, actor: Actor = ACTOR) -> None:
        self.database = database
        self.ring = ring
        self.actor = actor

    def means(self, secrets: Mapping[str, str] | None = None) -> Means:
        dialer = Dialer(AddressPolicy())
        return Means(
            self.ring, dialer, GivenSecrets(secrets or {}), lambda: datetime.datetime.now(datetime.UTC)
        )

    async def apply(
        self,
        text: str,
        secrets: Mapping[str, str] | None = None,
        *,
        prune: bool = False,
        dry_run: bool = False,
    ) -> Plan:
        return await perform(
            self.database, self.actor, self.means(secrets), read(text), prune=prune, dry_run=dry_run
        )

    async def export(self) -> str:
        async with self.database.read() as session:
            return write(await export(session, self.ring))

    async def served(self) -> dict[str, Any]:
        """The snapshot without what differs between databases: ids, version, keys, times, order."""
        async with self.database.read() as session:
            rows = await content.read(session)
        snapshot = msgspec.to_builtins(build(rows, self.ring.open).snapshot)
        names = {
            entry["id"]: entry["name"]
            for kind in ("providers", "provider_models")
            for entry in snapshot[kind]
        }
        for backend in snapshot["backends"]:
            parts = (
                names[backend["provider_id"]],
                names[backend["provider_model_id"]],
                backend["upstream_model"],
            )
            names[backend["id"]] = "|".join(parts)
        kinds = ("principals", "providers", "backends", "provider_models", "pools", "frontend_models")
        found = {kind: _named(snapshot[kind], names) for kind in kinds}
        return {**found, "fallback_model": snapshot["fallback_model"]}


def _named(entries: list[dict[str, Any]], names: Mapping[str, str]) -> list[dict[str, Any]]:
    plain = []
    for entry in entries:
        left = {name: value for name, value in entry.items() if name not in ("id", "created_at")}
        for name in ("provider_id", "provider_model_id"):
            if name in left:
                left[name] = names[left[name]]
        if "backends" in left:
            left["backends"] = sorted(names[one] for one in left["backends"])
        if "members" in left:
            members = [{**one, "backend_id": names[one["backend_id"]]} for one in left["members"]]
            left["members"] = sorted(members, key=repr)
        plain.append(left)
    return sorted(plain, key=repr)
