"""Dialling a provider: `GET {api_base}/models` with its credential, from here, under one deadline.

Addresses are checked at every dial, and the address that was checked is the one that is connected to: the
resolver below hands on only what may be dialled. Redirects are not followed, bodies are bounded, and no
environment variable names a proxy.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Mapping
from typing import Any

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult

import fastllm_shared
from fastllm_shared.addresses import AddressPolicy, parse_url
from fastllm_shared.snapshot import Protocol

DIAL_SECONDS = 5.0
MAX_BODY_BYTES = 8 * 1024 * 1024
"""The largest lists of models that are sold are near 1 MiB."""

_ANTHROPIC_VERSION = "2023-06-01"


class Endpoint(msgspec.Struct, frozen=True):
    """What it takes to dial a provider; as `fastllm_shared.snapshot.ProviderEntry` has it."""

    api_base: str
    protocol: Protocol = "openai"
    credential: str | None = None
    auth_header: str = "authorization"
    auth_scheme: str | None = None
    extra_headers: Mapping[str, str] = {}
    ca: str | None = None
    server_name: str | None = None

    def __repr__(self) -> str:
        return f"Endpoint({self.api_base})"


class UpstreamModel(msgspec.Struct, frozen=True):
    """One model that a provider says it serves; `max_model_len` in tokens where it says so."""

    id: str
    max_model_len: int | None = None


class DialResult(msgspec.Struct, frozen=True):
    """What came of it. `reason` is for people and holds nothing that the provider sent.

    `reachable` is true for any answer below 500 that is no redirect; `needs_credential` for 401 and 403;
    `forbidden` when the address may not be dialled at all. `models` is `None` when the answer was no list.
    """

    reachable: bool
    status: int | None = None
    reason: str | None = None
    models: tuple[UpstreamModel, ...] | None = None
    forbidden: bool = False

    @property
    def needs_credential(self) -> bool:
        return self.status in (401, 403)


class Dialer:
    """Opens a connection of its own for each dial: what was reachable a minute ago proves nothing."""

    def __init__(self, addresses: AddressPolicy, seconds: float = DIAL_SECONDS) -> None:
        self.addresses = addresses
        self._seconds = seconds

    async def dial(self, endpoint: Endpoint) -> DialResult:
        """Ask for the list of models. Never raises for what a provider or its address does."""
        problem = self.addresses.check_url(endpoint.api_base)
        if problem is not None:
            return DialResult(False, reason=f"the address {problem}", forbidden=True)
        try:
            async with asyncio.timeout(self._seconds):
                return await self._ask(endpoint)
        except TimeoutError:
            return DialResult(False, reason=f"no complete answer within {self._seconds:g} s")
        except AddressForbidden as error:
            return DialResult(False, reason=str(error), forbidden=True)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return DialResult(False, reason=_reason_of(error))

    async def _ask(self, endpoint: Endpoint) -> DialResult:
        port = parse_url(endpoint.api_base).port
        connector = aiohttp.TCPConnector(
            resolver=CheckingResolver(self.addresses, port), use_dns_cache=False, force_close=True
        )
        async with (
            aiohttp.ClientSession(connector=connector, trust_env=False, auto_decompress=False) as session,
            session.get(
                endpoint.api_base.rstrip("/") + "/models",
                headers=_headers(endpoint),
                allow_redirects=False,
                ssl=_tls(endpoint.ca),
                server_hostname=endpoint.server_name,
            ) as response,
        ):
            body = await _read(response)
            return _judge(response.status, body)


class AddressForbidden(Exception):
    """A name resolves to nothing that may be dialled."""


class CheckingResolver(AbstractResolver):
    """The system's resolver, handing on only those addresses that may be dialled."""

    def __init__(self, addresses: AddressPolicy, port: int) -> None:
        self._addresses = addresses
        self._port = port

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, family=family)
        allowed: list[ResolveResult] = []
        problem = "resolves to no address"
        for kind, _, protocol, _, where in found:
            address = str(where[0])
            refused = self._addresses.problem(address, self._port)
            if refused is not None:
                problem = f"the name resolves to what {refused}"
                continue
            allowed.append(_resolved(host, address, port, kind, protocol))
        if not allowed:
            raise AddressForbidden(problem)
        return allowed

    async def close(self) -> None:
        """Holds nothing."""


def _resolved(host: str, address: str, port: int, family: int, protocol: int) -> ResolveResult:
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    return ResolveResult(hostname=host, host=address, port=port, family=family, proto=protocol, flags=flags)


def _headers(endpoint: Endpoint) -> dict[str, str]:
    headers = {
        "accept": "application/json",
        "accept-encoding": "identity",
        "user-agent": f"fastllm-control/{fastllm_shared.__version__} (probe)",
    }
    if endpoint.protocol == "anthropic":
        headers["anthropic-version"] = _ANTHROPIC_VERSION
    headers.update({name.lower(): value for name, value in endpoint.extra_headers.items()})
    if endpoint.credential is not None:
        scheme = "Bearer" if endpoint.auth_scheme is None else endpoint.auth_scheme
        headers[endpoint.auth_header.lower()] = f"{scheme} {endpoint.credential}".lstrip()
    return headers


def _tls(ca: str | None) -> ssl.SSLContext | bool:
    return True if ca is None else ssl.create_default_context(cadata=ca)


async def _read(response: aiohttp.ClientResponse) -> bytes | None:
    """The whole body, or `None` if it is larger than anything we would read."""
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > MAX_BODY_BYTES:
            return None
    return bytes(body)


def _judge(status: int, body: bytes | None) -> DialResult:
    if 300 <= status < 400:
        return DialResult(False, status, f"answers with a redirect ({status}), and none is followed")
    if status >= 500:
        return DialResult(False, status, f"answers {status}")
    if status in (401, 403):
        return DialResult(True, status, f"answers {status}: it does not accept the credential")
    if status != 200:
        return DialResult(True, status, f"answers {status} to a request for its models")
    models = None if body is None else read_models(body)
    reason = "answers, but not with a list of models" if models is None else None
    return DialResult(True, status, reason, models)


def read_models(body: bytes) -> tuple[UpstreamModel, ...] | None:
    """The models of a `/models` answer, each id once, or `None` if it is no such answer.

    A member that is out of shape is passed over: one odd entry must not hide the rest.
    """
    try:
        listed: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    data = listed.get("data") if isinstance(listed, dict) else None
    if not isinstance(data, list):
        return None
    found: dict[str, UpstreamModel] = {}
    for entry in data:
        identity = entry.get("id") if isinstance(entry, dict) else None
        if isinstance(identity, str) and identity and "\0" not in identity:
            found.setdefault(identity, UpstreamModel(identity, _length(entry.get("max_model_len"))))
    return tuple(found.values())


def _length(value: object) -> int | None:
    sound = isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**53
    return value if sound and isinstance(value, int) else None


def _reason_of(error: Exception) -> str:
    """Why a dial failed, in words that hold no address and nothing that the provider sent."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "its certificate is not trusted: name its authority in `ca`, or its name in `server_name`"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "its name does not resolve"
    if isinstance(error, (aiohttp.ClientSSLError, ssl.SSLError)):
        return "TLS failed: is it plain http, or is `ca` no certificate?"
    if isinstance(error, ConnectionRefusedError) or isinstance(
        getattr(error, "os_error", None), ConnectionRefusedError
    ):
        return "the connection is refused"
    broken = (aiohttp.ServerDisconnectedError, aiohttp.ClientPayloadError)
    if isinstance(error, broken) or getattr(error, "errno", None) in (errno.ECONNRESET, errno.EPIPE):
        return "it closes the connection before the answer is complete"
    if isinstance(error, aiohttp.ClientResponseError):
        return "what answers does not speak HTTP"
    return "it cannot be reached"
