"""Small configurations to route in, resolved over backends that are as a test wants them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from fastllm_shared.conditions import Facts
from fastllm_shared.given import Given
from fastllm_shared.policies import Chooser
from fastllm_shared.snapshot import (
    BackendEntry,
    FrontendModelEntry,
    Policy,
    PoolEntry,
    PoolMember,
    ProviderEntry,
    ProviderModelEntry,
    Snapshot,
    TargetEntry,
)
from fastllm_shared.targets import Idle, Member, Routes, resolve

PROVIDER = ProviderEntry("p", "gpu", "static", "http://127.0.0.1:1/v1", protocol="both")


class Busy(Idle):
    """A backend in any state."""

    __slots__ = ("latency", "out")

    def __init__(self, entry: BackendEntry, model: ProviderModelEntry) -> None:
        super().__init__(entry, PROVIDER, model)
        self.latency: float | None = None
        self.out = False

    def is_in_rotation(self, now: float) -> bool:
        return not self.out

    def recent_latency(self, now: float) -> float | None:
        return self.latency


class World(msgspec.Struct, frozen=True):
    """`backends` are those of `routes`, by id: change them and see who is chosen."""

    routes: Routes[Busy]
    backends: dict[str, Busy]


def model(name: str, backends: int = 1, **changes: int) -> ProviderModelEntry:
    """A provider model with backends `name-1`…; `changes` are its prices and context length."""
    ids = tuple(f"{name}-{n}" for n in range(1, backends + 1))
    return ProviderModelEntry(f"id-{name}", name, backends=ids, **changes)


def frontend(name: str, *targets: str | tuple[str, int], **changes: object) -> FrontendModelEntry:
    """A frontend model; a target is a name or a name and its weight."""
    return msgspec.structs.replace(
        FrontendModelEntry(f"id-{name}", name, 0.0, targets=entries(*targets)), **changes
    )


def entries(*targets: str | tuple[str, int]) -> tuple[TargetEntry, ...]:
    return tuple(TargetEntry(t) if isinstance(t, str) else TargetEntry(*t) for t in targets)


def pool(name: str, policy: Policy, **members: int) -> PoolEntry:
    """A pool of backends with weights: `a_1=2` is `a-1` with 2."""
    return PoolEntry(
        f"id-{name}",
        name,
        policy,
        tuple(PoolMember(id_.replace("_", "-"), weight) for id_, weight in members.items()),
    )


def world(
    models: Sequence[ProviderModelEntry],
    *frontends: FrontendModelEntry,
    pools: Sequence[PoolEntry] = (),
    fallback: str | None = None,
) -> World:
    backends = {id_: Busy(BackendEntry(id_, "p", m.id, "up"), m) for m in models for id_ in m.backends}
    snapshot = Snapshot(
        1,
        "h",
        0.0,
        providers=(PROVIDER,),
        backends=tuple(backend.entry for backend in backends.values()),
        provider_models=tuple(models),
        pools=tuple(pools),
        frontend_models=frontends,
        fallback_model=fallback,
    )
    return World(resolve(snapshot, backends), backends)


def facts(**changes: object) -> Facts:
    """A plain request of `team-a`, at the Unix epoch."""
    plain = Facts(principal="team-a", roles=(), stream=False, now_unix=0.0)
    return msgspec.structs.replace(plain, **changes)


def asked(key: int = 0, **changes: object) -> Given:
    return msgspec.structs.replace(Given(key), **changes)


def chooser(draw: Callable[[Sequence[int]], int] = min) -> Chooser:
    """One that draws the first of equals, unless said otherwise."""
    return Chooser(draw, lambda: 0.0)


def members(count: int, weights: Sequence[int] = (), **prices: int) -> list[Member[Busy]]:
    """Backends `m-1`… of one model."""
    made = model("m", count, **prices)
    return [
        Member(Busy(BackendEntry(id_, "p", made.id, "up"), made), weights[at] if weights else 1)
        for at, id_ in enumerate(made.backends)
    ]
