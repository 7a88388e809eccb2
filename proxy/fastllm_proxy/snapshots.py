"""The store of what is served, and the registry of live backends.

A snapshot becomes a whole new view, and one reference is swapped: a request reads the view that it began
with from start to end. Live backends are carried over by identity, so that a new version resets no
connection, count or ejection of a backend that it did not change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from fastllm_proxy.backends import Backend
from fastllm_proxy.observe import Log
from fastllm_proxy.view import View, build_view
from fastllm_shared.addresses import UpstreamUrl, parse_url
from fastllm_shared.snapshot import BackendEntry, ProviderEntry, ProviderModelEntry, Snapshot

if TYPE_CHECKING:
    from fastllm_proxy.upstream import UpstreamPool

PoolFactory = Callable[[ProviderEntry], "UpstreamPool"]
"""Makes the connection pool of one backend; raises `ValueError` when the entry cannot be dialled at all."""

Identity = tuple[object, ...]


class BackendRegistry:
    """Live backends by id. A changed address, credential or upstream name makes a new one; streams on the old
    one finish, and its connections are closed as they come back."""

    def __init__(self, make_pool: PoolFactory, log: Log) -> None:
        self._make_pool = make_pool
        self._log = log
        self._live: dict[str, tuple[Identity, Backend]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def adopt(self, snapshot: Snapshot) -> dict[str, Backend]:
        """The live backends of `snapshot` by id. One bad entry is logged and left out, never the whole."""
        providers = {entry.id: entry for entry in snapshot.providers}
        models = {entry.id: entry for entry in snapshot.provider_models}
        live: dict[str, tuple[Identity, Backend]] = {}
        for entry in snapshot.backends:
            provider, model = providers.get(entry.provider_id), models.get(entry.provider_model_id)
            if provider is None or model is None:
                self._log.warning(
                    "backend left out", backend=entry.id, cause="its provider or model is absent"
                )
                continue
            try:
                live[entry.id] = self._keep_or_make(entry, provider, model)
            except ValueError as error:
                self._log.warning("backend left out", backend=entry.id, cause=str(error))
        kept = {id(backend) for _, backend in live.values()}
        gone = [backend for _, backend in self._live.values() if id(backend) not in kept]
        self._live = live
        for backend in gone:
            self._close_soon(backend)
        return {id_: backend for id_, (_, backend) in live.items()}

    async def close(self) -> None:
        """Closes every idle connection."""
        for _, backend in self._live.values():
            await backend.pool.close()
        if self._closing:
            await asyncio.wait(self._closing)

    def _keep_or_make(
        self, entry: BackendEntry, provider: ProviderEntry, model: ProviderModelEntry
    ) -> tuple[Identity, Backend]:
        identity = identity_of(entry, provider)
        before = self._live.get(entry.id)
        if before is not None and before[0] == identity:
            backend = before[1]
            backend.entry, backend.provider, backend.model = entry, provider, model
            return before
        base = parse_url(provider.api_base)
        return identity, Backend(
            entry, provider, model, self._make_pool(provider), base.path, credential_lines(provider, base)
        )

    def _close_soon(self, backend: Backend) -> None:
        task = asyncio.get_running_loop().create_task(backend.pool.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


class SnapshotStore:
    """`current` is what new requests are served from; `None` before the first snapshot."""

    def __init__(self, registry: BackendRegistry) -> None:
        self._registry = registry
        self.current: View | None = None

    def accept(self, snapshot: Snapshot) -> None:
        """Builds the view of `snapshot` and swaps it in; must be called in the event loop."""
        backends = self._registry.adopt(snapshot)
        self.current = build_view(snapshot, backends)


def identity_of(entry: BackendEntry, provider: ProviderEntry) -> Identity:
    """What must be unchanged for a backend's live state to live on."""
    return (
        entry.provider_id,
        entry.provider_model_id,
        entry.upstream_model,
        provider.api_base,
        provider.credential,
        provider.auth_header,
        provider.auth_scheme,
        provider.extra_headers,
        provider.ca,
        provider.server_name,
    )


def credential_lines(provider: ProviderEntry, base: UpstreamUrl) -> bytes:
    """`Host`, credential and extra headers as wire bytes. Raises `ValueError` for text that would break out
    of its line."""
    fields = [("host", base.host_header)]
    if provider.credential is not None:
        scheme = "Bearer" if provider.auth_scheme is None else provider.auth_scheme
        fields.append((provider.auth_header.lower(), f"{scheme} {provider.credential}".strip()))
    fields.extend(provider.extra_headers)
    lines = b""
    for name, value in fields:
        if not _is_token(name) or not _is_one_line(value):
            raise ValueError(f"the header {name!r} of its provider cannot be sent")
        lines += b"%b: %b\r\n" % (name.encode(), value.encode())
    return lines


def _is_token(name: str) -> bool:
    return name != "" and name.isascii() and all(c.isalnum() or c in "!#$%&'*+-.^_`|~" for c in name)


def _is_one_line(value: str) -> bool:
    return not any((ord(c) < 32 and c != "\t") or ord(c) == 127 for c in value)
