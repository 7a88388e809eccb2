"""Configuration and live backends for tests of a proxy, small enough to read."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec

from fastllm_proxy.backends import Backend
from fastllm_proxy.pools import PoolFactory
from fastllm_proxy.snapshots import BackendRegistry
from fastllm_proxy.timers import TimerWheel
from fastllm_shared.addresses import AddressPolicy
from fastllm_shared.keys import digest_of
from fastllm_shared.snapshot import (
    BackendEntry,
    FrontendModelEntry,
    KeyEntry,
    PrincipalEntry,
    ProviderEntry,
    ProviderModelEntry,
    Snapshot,
    TargetEntry,
)
from tests.fakes.log import CapturedLog

KEY = "sk-a-key-for-tests"
MODEL = "assistant"


def snapshot_of(*engines: str, version: int = 1, keys: Iterable[str] = (KEY,)) -> Snapshot:
    """The frontend model `assistant`, one backend for each URL: `b1` of provider `p1`, and so on."""
    numbers = range(1, len(engines) + 1)
    return Snapshot(
        version=version,
        history="h",
        created_at=1.0,
        keys=tuple(
            KeyEntry(digest=digest_of(key), id=f"k{n}", principal_id="team", prefix=key[:11])
            for n, key in enumerate(keys, 1)
        ),
        principals=(PrincipalEntry(id="team", name="team", kind="service_account", all_models=True),),
        providers=tuple(
            ProviderEntry(id=f"p{n}", name=f"gpu-{n}", kind="static", api_base=url, protocol="both")
            for n, url in zip(numbers, engines, strict=True)
        ),
        backends=tuple(
            BackendEntry(id=f"b{n}", provider_id=f"p{n}", provider_model_id="m", upstream_model="fake-model")
            for n in numbers
        ),
        provider_models=(ProviderModelEntry(id="m", name="qwen", backends=tuple(f"b{n}" for n in numbers)),),
        frontend_models=(
            FrontendModelEntry(id="f", name=MODEL, created_at=1.0, targets=(TargetEntry("qwen"),)),
        ),
    )


def with_provider(snapshot: Snapshot, **fields: object) -> Snapshot:
    """The same with these fields in every provider."""
    changed = tuple(msgspec.structs.replace(entry, **fields) for entry in snapshot.providers)
    return msgspec.structs.replace(snapshot, providers=changed)


def with_backend(snapshot: Snapshot, **fields: object) -> Snapshot:
    """The same with these fields in every backend."""
    changed = tuple(msgspec.structs.replace(entry, **fields) for entry in snapshot.backends)
    return msgspec.structs.replace(snapshot, backends=changed)


class LiveBackends:
    """A registry with real pools. Built inside the running loop; `close` it."""

    def __init__(self, policy: AddressPolicy | None = None) -> None:
        self.captured = CapturedLog()
        self._timers = TimerWheel(asyncio.get_running_loop())
        pools = PoolFactory(policy or AddressPolicy(), self._timers, None)
        self.registry = BackendRegistry(pools, self.captured.log)
        self.current: dict[str, Backend] = {}

    def adopt(self, snapshot: Snapshot) -> dict[str, Backend]:
        self.current = self.registry.adopt(snapshot)
        return self.current

    async def close(self) -> None:
        await self.registry.close()
        self._timers.close()
