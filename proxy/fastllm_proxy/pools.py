"""Connection pools for backends: address, TLS and what may be dialled."""

from __future__ import annotations

import ssl

from fastllm_proxy.timers import TimerWheel
from fastllm_proxy.tls import client_context
from fastllm_proxy.upstream import CONNECT_SECONDS, Resolve, UpstreamPool, read_buffer
from fastllm_shared.addresses import AddressPolicy, parse_url
from fastllm_shared.snapshot import ProviderEntry

MAX_CONTEXTS = 64
"""A context holds the system's roots and takes some 10 ms to build: kept per authority, but not for ever."""


class PoolFactory:
    """Makes the pool of one backend. Needs a running event loop."""

    def __init__(
        self,
        addresses: AddressPolicy,
        timers: TimerWheel,
        ca_bundle: str | None,
        *,
        connect_seconds: float = CONNECT_SECONDS,
        resolve: Resolve | None = None,
    ) -> None:
        """`connect_seconds` is for all of name, connection and TLS; `resolve` stands in for the system's."""
        self._addresses = addresses
        self._connect_seconds = connect_seconds
        self._resolve = resolve
        self._timers = timers
        self._ca_bundle = ca_bundle
        self._buffer = read_buffer()
        self._contexts: dict[str | None, ssl.SSLContext] = {}

    def __call__(self, provider: ProviderEntry) -> UpstreamPool:
        """Raises `ValueError` when the entry cannot be dialled at all."""
        url = parse_url(provider.api_base)
        return UpstreamPool(
            host=url.host,
            port=url.port,
            tls=self.context(provider.ca) if url.scheme == "https" else None,
            server_name=provider.server_name,
            addresses=self._addresses,
            timers=self._timers,
            buffer=self._buffer,
            connect_seconds=self._connect_seconds,
            resolve=self._resolve,
        )

    def context(self, authority: str | None) -> ssl.SSLContext:
        """TLS for providers whose own authority is this PEM text, if any; raises `ValueError`."""
        found = self._contexts.get(authority)
        if found is None:
            if len(self._contexts) >= MAX_CONTEXTS:
                self._contexts.clear()
            found = self._contexts[authority] = client_context(self._ca_bundle, authority)
        return found
