"""One probe of one endpoint: `GET {api_base}/models` on its own connection, and what the answer means."""

from __future__ import annotations

import asyncio
from typing import Literal

import msgspec

from fastllm_proxy.backends import Backend
from fastllm_proxy.errors import UpstreamError
from fastllm_shared.health import EjectionReason
from fastllm_shared.snapshot import ProviderEntry

MAX_BODY_BYTES = 4 * 1024 * 1024
"""Enough for a list of some 10,000 models; an endpoint that sends more is alive, and read no further."""

Verdict = Literal["passed", "absent"] | EjectionReason
"""`absent`: it answers, but has no such path. Anything else is why it failed."""


class EndpointKey(msgspec.Struct, frozen=True):
    """What makes two backends one endpoint: whatever a probe's request and connection depend on."""

    api_base: str
    protocol: str
    credential: str | None
    auth_header: str
    auth_scheme: str | None
    extra_headers: tuple[tuple[str, str], ...]
    ca: str | None
    server_name: str | None

    def __repr__(self) -> str:
        return f"EndpointKey({self.api_base!r})"  # without what is secret of it


def endpoint_key(provider: ProviderEntry) -> EndpointKey:
    return EndpointKey(
        api_base=provider.api_base.rstrip("/"),
        protocol=provider.protocol,
        credential=provider.credential,
        auth_header=provider.auth_header.lower(),
        auth_scheme=provider.auth_scheme,
        extra_headers=provider.extra_headers,
        ca=provider.ca,
        server_name=provider.server_name,
    )


async def probe(backend: Backend, user_agent: str, deadline_seconds: float) -> Verdict:
    """Asks once; connecting, head and body share the deadline."""
    state = _Progress()
    try:
        async with asyncio.timeout(deadline_seconds):
            await _ask(backend, _request_head(backend, user_agent), deadline_seconds, state)
    except TimeoutError:
        return "timeout" if state.status is None else "body_stalled"
    except UpstreamError as error:
        return "body_stalled" if error.reason == "timeout" and state.status is not None else error.reason
    if state.status is None or state.status >= 500:
        return "status"
    if state.status in (401, 403):
        return "credential"
    return "absent" if state.status in (404, 405) else "passed"


class _Progress:
    """How far a probe has come."""

    __slots__ = ("status",)

    def __init__(self) -> None:
        self.status: int | None = None


async def _ask(backend: Backend, head: bytes, deadline_seconds: float, state: _Progress) -> None:
    connection = await backend.pool.connect()
    try:
        connection.send(head, b"")
        state.status = (await connection.head(deadline_seconds)).status
        received = 0
        while received <= MAX_BODY_BYTES and (piece := await connection.read(deadline_seconds)):
            received += len(piece)
    finally:
        connection.abort()


def _request_head(backend: Backend, user_agent: str) -> bytes:
    dialect = b"anthropic-version: 2023-06-01\r\n" if backend.provider.protocol == "anthropic" else b""
    return (
        b"GET %s/models HTTP/1.1\r\n%s%suser-agent: %s\r\naccept: application/json\r\n"
        b"accept-encoding: identity\r\nconnection: close\r\n\r\n"
    ) % (backend.base_path.encode("ascii"), backend.credential_header, dialect, user_agent.encode("ascii"))
