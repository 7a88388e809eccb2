"""A gateway over several fake engines that are tried one after the other."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

from fastllm_proxy.view import FrontendModel
from fastllm_shared.snapshot import FrontendModelEntry, TargetEntry
from fastllm_shared.targets import targets_of
from tests.fakes.engine import Answer, FakeEngine, Fault
from tests.proxy.parts import target
from tests.proxy.rig import MODEL, Gateway, gateway

CHAT = "/chat/completions"
ILL = Answer(status=500)
DEAD = Answer(fault=Fault("reset"))


@contextlib.asynccontextmanager
async def fleet(
    folder: Path, *answers: Answer, frontend: dict[str, Any] | None = None, **changes: Any
) -> AsyncIterator[tuple[Gateway, list[FakeEngine]]]:
    """A gateway over as many engines as there are answers. They are tried in this order, for they stand in
    targets of their own, the first with all the weight."""
    async with contextlib.AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(FakeEngine.start()) for _ in answers]
        for engine, answer in zip(engines, answers, strict=True):
            engine.script(CHAT, answer)
        proxy = await stack.enter_async_context(gateway(folder, *engines, **changes))
        apart(proxy, **(frontend or {}))
        yield proxy, engines


def apart(proxy: Gateway, **frontend: Any) -> None:
    """Puts each backend into a target of its own, in order."""
    view = proxy.store.current
    assert view is not None
    entry = FrontendModelEntry("frontend-1", MODEL, 0.0, targets=(TargetEntry("qwen"),), **frontend)
    targets = tuple(
        target(f"t{n}", backend, weight=0 if n else 1) for n, backend in enumerate(view.backends.values())
    )
    models = {**view.models, MODEL: FrontendModel(entry, MODEL, targets_of(MODEL, None, targets))}
    routes = msgspec.structs.replace(view.routes, models=models)
    proxy.store.current = msgspec.structs.replace(view, models=models, routes=routes)


def hits(engines: list[FakeEngine]) -> list[int]:
    return [engine.hits(CHAT) for engine in engines]


def closed_port() -> int:
    """Where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
